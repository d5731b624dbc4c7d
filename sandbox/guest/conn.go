package guest

import (
	"context"
	"errors"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Conn is a connection to one guest. Whoever called Dial closes it. Its
// methods are safe for concurrent use.
type Conn struct{}

var errNotYet = errors.New("not implemented in this commit")

// Dial sends the configuration, waits for the guest's hello and returns the
// connection. It fails with sandbox.ErrUnavailable if the guest ends, stays
// silent or speaks another version, and with an error wrapping
// context.Cause(ctx) if ctx ends first; Options.Conn is then closed. ctx
// matters to Dial only, not to the connection.
func Dial(ctx context.Context, o Options) (*Conn, error) { return nil, errNotYet }

// Hello is what the guest said about itself and the container.
func (c *Conn) Hello() wire.Hello { return wire.Hello{} }

// Start starts a command, as sandbox.Sandbox.Start says. It returns when the
// guest has started it or said why not.
func (c *Conn) Start(ctx context.Context, cmd sandbox.Command) (sandbox.Process, error) {
	return nil, errNotYet
}

// Apply makes one change to the workspace, as sandbox.Sandbox.Apply says.
func (c *Conn) Apply(ctx context.Context, op workspace.Op) (workspace.Change, error) {
	return workspace.Change{}, errNotYet
}

// Ping makes a round trip to the guest.
func (c *Conn) Ping(ctx context.Context) error { return errNotYet }

// Done is closed when the connection has ended; Err then says why: nil after
// Close, an error wrapping sandbox.ErrLost otherwise. A backend that sees Done
// kills the container.
func (c *Conn) Done() <-chan struct{} { return nil }

// Err is nil until Done is closed.
func (c *Conn) Err() error { return nil }

// Close closes the connection, which makes the guest kill everything and exit,
// and waits for the connection's goroutines. Commands that run end with
// sandbox.ErrLost. It is idempotent.
func (c *Conn) Close() error { return nil }
