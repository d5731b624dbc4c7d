package docker

const defaultHost = "npipe:////./pipe/docker_engine"
