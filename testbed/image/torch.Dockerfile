# The PyTorch image: Debian 13 with python3-torch, and the example. Built without network.
ARG BASE
FROM ${BASE}
ENV PYTHONUNBUFFERED=1
# Debian builds PyTorch without libuv, which it would use for its store by default.
ENV USE_LIBUV=0
WORKDIR /opt/lightloom
COPY lightloom /opt/lightloom
CMD ["python3", "/opt/lightloom/examples/torch_ddp.py"]
