//go:build !linux

package execsock

import (
	"context"
	"errors"
	"net"
)

// errUnsupported says that this system has no way to take commands.
var errUnsupported = errors.New("commands of users in a live sandbox need Linux")

// Listen fails: it needs descriptors as paths and the identity of a peer.
func Listen(context.Context, string, string, Handler) (*Server, error) { return nil, errUnsupported }

// Dial fails, as Listen does.
func Dial(string, string) (net.Conn, error) { return nil, errUnsupported }

func checkPeer(*net.UnixConn) (int32, error) { return 0, errUnsupported }
