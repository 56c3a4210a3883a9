/* The recorder's file: its layout and rules are those of recorder/python/lightloom_writer.py. */
#ifndef LIGHTLOOM_TABLE_H
#define LIGHTLOOM_TABLE_H

#include <stdint.h>

enum timing { DEVICE, HOST, ISSUE };

/* Make the file of this process, once; 0 if there is one. Fork: a child does not write. */
int table_open(void);
/* Row of an operation, by position of its names; 0 (other) where the table is full. */
uint32_t table_row(unsigned op, unsigned type, enum timing timing, uint64_t bytes);
/* Count a call; the ticket of table_end. */
uint64_t table_issue(uint32_t row, uint64_t communicator, uint64_t sequence, double issued_s);
/* Add a duration, and the end to the call if it is still in the ring. */
void table_end(uint64_t ticket, uint32_t row, double issued_s, double duration_s);
void table_lose(void);
double table_now(void);

#endif
