FROM python:3.11-slim
COPY wheels /usr/share/wheels
RUN printf '[global]\nno-index = true\nfind-links = /usr/share/wheels\nbreak-system-packages = true\n' >/etc/pip.conf
CMD ["python3"]
