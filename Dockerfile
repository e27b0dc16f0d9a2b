# llog: broker, compactor and command line in one image. `docker build -t llog .`; the default command is a broker.
#
#   --build-arg EXTRAS=oxia,postgres,spark    Spark and a Java runtime, for a compactor that runs large rounds on Spark
#   --build-arg KERNEL_CPU=generic            on processors other than x86-64
#
# A container listens on its loopback address until LLOG_HTTP_BIND_HOST and LLOG_KAFKA_HOST say otherwise, and then asks
# for tokens and a certificate, or LLOG_INSECURE=1 (docs/operate.md, "Image and compose").

ARG KERNEL_CPU=x86-64-v2

FROM python:3.11-slim AS build
ARG EXTRAS=oxia,postgres
ARG KERNEL_CPU
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/llog
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
RUN /opt/llog/bin/pip install --constraint constraints.txt ".[${EXTRAS}]"
# Compiled kernels are valid for one kind of processor and for one time of their sources. So they are made for a kind that
# all servers have, and the time has whole seconds, which is what image layers keep.
ENV NUMBA_CPU_NAME=${KERNEL_CPU}
RUN find /opt/llog -name "*.py" -exec touch -d 2020-01-01T00:00:00Z {} +
RUN /opt/llog/bin/python -c "from llog.http.json import warm_up; warm_up()"

FROM python:3.11-slim
ARG KERNEL_CPU
RUN useradd --system --uid 10001 --home-dir /var/lib/llog --create-home llog
COPY --from=build /opt/llog /opt/llog
ENV PATH=/opt/llog/bin:$PATH PYTHONUNBUFFERED=1 NUMBA_CPU_NAME=${KERNEL_CPU} LLOG_DATA_DIR=/var/lib/llog
USER 10001
WORKDIR /var/lib/llog
VOLUME /var/lib/llog
EXPOSE 8080 9092
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen('http://127.0.0.1:' + os.environ.get('LLOG_HTTP_PORT', '8080') + '/health', timeout=3)"]
ENTRYPOINT ["llog"]
CMD ["broker"]
