"""Contains wire replies of real switches, recorded in 2016 (Calient S162, software 6.0-3)."""

LOGIN = (
    b"\r\n\n   CALIENT01TS 16-10-31 15:01:34\r\n"
    b"M  1 COMPLD\r\n"
    b'    "zpollock:zpollock,2"\r\n'
    b"    /* NOTICE This is a private computer system. Unauthorized access;\r\n"
    b"       or use is prohibited. */\r\n"
    b";"
)
IDENTITY_ROW = (
    "CALIENT01TS:SERIALNUMBER=C00002227,SWPACKAGE=6.0-3,STATUS=OK,CHASSISTYPE=S162,"
    "PLATFORM=VERSION2"
)
IDENTITY = (
    b"\r\n\n   CALIENT01TS 16-10-31 15:01:34\r\n"
    b"M  0 COMPLD\r\n"
    b'   "' + IDENTITY_ROW.encode() + b'"\r\n'
    b";"
)
DARK_PORT_ROW = (
    "1.1.1:WX,NONE,NONE:INAS=OOS-NP,INOS=OOS,INOC=OK,INRS=NPR,"
    "OUTAS=OOS-NP,OUTOS=OOS,OUTOC=OK,OUTRS=NPR"
)
USED_PORT_ROW = (
    "6.1.1:WX,TRANSIT,TRANSIT:INAS=IS,INOS=IS,INOC=OK,INRS=NPR,OUTAS=IS,OUTOS=IS,OUTOC=OK,OUTRS=NPR"
)
DUPLEX_ROW = (
    "2.3.6-3.2.5:SRCPORT=2.3.6,DSTPORT=3.2.5,GRPNAME=DSTRAUB,CONNNAME=2.3.6-3.2.5,"
    "CONNTYPE=2WAY,AS=UMA,OS=RDY,OC=OK,PS=UPR,AL=CL"
)
SIMPLEX_ROW = (
    "2.8.5>2.3.3:SRCPORT=2.8.5,DSTPORT=2.3.3,GRPNAME=DSTRAUB,CONNNAME=2.8.5>2.3.3,"
    "CONNTYPE=1WAY,AS=UMA,OS=RDY,OC=FAIL,PS=UPR,AL=CL"
)
CIRCUITS = (
    b"\r\n\n   CALIENT01TS 16-10-31 15:01:35\r\n"
    b"M  7 COMPLD\r\n"
    b'   "' + DUPLEX_ROW.encode() + b'"\r\n'
    b'   "' + SIMPLEX_ROW.encode() + b'"\r\n'
    b";"
)
PORT_SUMMARY_ROW = (
    "1.1.1:ALIAS=NONE,INPWR=NONE,OUTPWR=NONE,CONNNAME1=1.1.1>1.1.2,CONNSTATE1=ACT,"
    "CONNNAME2=NONE,CONNSTATE2=NONE"
)
GLIMMERGLASS_ROW = (
    "GGN:IPORTID=10001,IPORTGROUP=OpenGroup,IPORTNAME=IN1,IPORTCOMMENT=,INPWR=-12.05,"
    "OPORTID=20008,OUTPWR=-13.63,SIGBAND=1550,PWRLOSS=1.57,CONNID=0,CONNNAME=IN1,"
    "CONNSTATE=steady,CONNCAUSE=none,CONNLOCK=0,CONNLOCKUSER=admin"
)
DENIAL = (
    b"\r\n\n   CALIENT01TS 16-10-31 15:01:36\r\n"
    b"M  9 DENY\r\n   IIAC\r\n   /* Input, Invalid AID; no such port */\r\n;"
)
ALARM = (
    b'\r\n\n   CALIENT01TS 16-10-31 15:02:00\r\n*C  12 REPT ALM EQPT\r\n   "1.1.1:CR,LOS,SA"\r\n;'
)
