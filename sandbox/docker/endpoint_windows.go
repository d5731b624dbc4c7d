package docker

import (
	"context"
	"net"

	"github.com/Microsoft/go-winio"
)

const defaultHost = "npipe:////./pipe/docker_engine"

func dialNetwork(ctx context.Context, network, address string) (net.Conn, error) {
	if network == "npipe" {
		return winio.DialPipeContext(ctx, address)
	}
	return new(net.Dialer).DialContext(ctx, network, address)
}
