//go:build !windows

package docker

import (
	"context"
	"net"
)

const defaultHost = "unix:///var/run/docker.sock"

func dialNetwork(ctx context.Context, network, address string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, network, address)
}
