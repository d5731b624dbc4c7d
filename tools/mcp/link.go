package mcp

import (
	"context"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// link is one life of a server: a connection to it, and the way to end it. There is
// one implementation per kind of server.
type link interface {
	// Connect returns the connection. It is called once, and bounded by ctx.
	mcp.Transport
	// endSignal is closed when the server or the connection to it has ended.
	endSignal() <-chan struct{}
	// endCause returns why it ended, once endSignal is closed.
	endCause() error
	// stopServer ends it and returns when nothing of it is left, or when ctx ends. It may
	// be called at any time, repeatedly.
	stopServer(ctx context.Context) error
	// stderrTail returns the end of what the server wrote to its standard error, and
	// the number of bytes it wrote in all.
	stderrTail() (tail string, total int64)
}
