//go:build !windows

package docker

const defaultHost = "unix:///var/run/docker.sock"
