FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends \
    golang-go python3 python3-pytest gcc libc6-dev ccache cargo jest node-typescript && rm -rf /var/lib/apt/lists/*
WORKDIR /app
CMD ["bash"]
