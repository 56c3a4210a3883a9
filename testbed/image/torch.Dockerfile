# The PyTorch image: a Debian with python3-torch, and the example. Built without network.
ARG BASE
FROM ${BASE}
ENV PYTHONUNBUFFERED=1
WORKDIR /opt/lightloom
COPY lightloom /opt/lightloom
CMD ["python3", "/opt/lightloom/examples/torch_ddp.py"]
