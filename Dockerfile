# A server for one model: docker build -t gatf . && docker run (docs/studio.md has the whole command)
FROM python:3.11-slim

# torch's own index has the small build without CUDA
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1

WORKDIR /src
COPY constraints-cpu.txt pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install --extra-index-url "$TORCH_INDEX" -c constraints-cpu.txt ".[studio,pretrained,onnx]" \
    && rm -rf /src/* \
    && useradd --create-home --uid 10001 gatf \
    && install -d -o gatf -g gatf -m 0700 /models

USER gatf
WORKDIR /models
VOLUME /models
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=20s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
# other machines reach it, so it wants a token: -e GATF_TOKEN=… or a mounted file for --token-file
ENTRYPOINT ["gatf", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["/models/model.gatf"]
