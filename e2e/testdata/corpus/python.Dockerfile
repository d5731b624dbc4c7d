FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-pip python3-pytest && rm -rf /var/lib/apt/lists/* \
 && rm /usr/lib/python3.*/EXTERNALLY-MANAGED && ln -s /usr/bin/python3 /usr/local/bin/python
CMD ["python3"]
