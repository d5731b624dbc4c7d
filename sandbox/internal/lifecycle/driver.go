package lifecycle

import (
	"context"
	"errors"
	"io"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest"
	"github.com/caisson-run/caisson/sandbox/internal/ownership"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

// ErrNotShared is the error if the container does not see this machine's file
// system, so that the workspace can't be mounted in it. It comes with
// sandbox.ErrUnavailable; another backend may work.
var ErrNotShared = errors.New("the engine does not share this file system")

// Driver is the part of one engine or runtime, apart from single
// containers. It is safe for concurrent use.
type Driver interface {
	// NewContainer returns the container of a sandbox that is about to be
	// created. It checks the spec and the system, and makes nothing.
	NewContainer(ctx context.Context, p *Preparation) (Container, error)
	// RemoveEntry removes one entry of a dead session's cleanup list and
	// reports whether it existed. It must check that it belongs to the session,
	// because the list is a file.
	RemoveEntry(ctx context.Context, session string, e ownership.Entry) (bool, error)
	// RemoveUnlisted removes the orphans that the engine itself knows. It
	// returns those that it removed along with an error.
	RemoveUnlisted(ctx context.Context) ([]sandbox.Orphan, error)
	// Prune removes what was cached for further starts and has been unused for
	// long.
	Prune(ctx context.Context) error
	// Inspect sets the state and memory of the listed sandboxes, which are
	// keyed by session, and adds those that the engine alone knows.
	Inspect(ctx context.Context, listed map[string]*Listed) error
}

// Container is the container of one sandbox. Its methods are called in the
// order in which they are listed, by one goroutine at a time, except that Start
// runs during the handshake. After an error of any of them only ExplainFailure
// and Remove are called.
type Container interface {
	// ID returns the engine's or runtime's name of the container.
	ID() string
	// FetchImage gets the image if the engine provides it itself, and reports
	// whether it does. Otherwise Preparation.Image describes the image.
	FetchImage(ctx context.Context) (bool, error)
	// Plan decides what the container consists of on the host and returns the
	// entries for the cleanup list.
	Plan(ctx context.Context) ([]ownership.Entry, error)
	// Begin begins what need not wait for the workspace's mounts.
	Begin(ctx context.Context) error
	// Identity returns the identity of commands in a container with these mounts.
	Identity(m *workmount.Mounts) Identity
	// Create creates the container and returns its standard streams. It need
	// not have been created completely before Start returns.
	Create(ctx context.Context) (Connection, error)
	// Start returns once the container runs. If it fails, the connection is
	// closed.
	Start(ctx context.Context) error
	// Attest adds to the attestation what it reads back from the engine or
	// runtime and the kernel, and returns every way in which the container is
	// weaker than it must be.
	Attest(ctx context.Context, conn *guest.Conn, a *sandbox.Attestation) error
	// ExplainFailure adds to the error of a failed start what the engine,
	// runtime or kernel know about its cause.
	ExplainFailure(ctx context.Context, err error) error
	// ExplainLoss adds the cause to the loss of a running sandbox, and kills
	// what still runs. It is the only method that may be running when Remove is
	// due: ctx then ends.
	ExplainLoss(ctx context.Context, loss error) error
	// Remove kills what runs in the container, removes it with everything that
	// the engine or runtime made for it, and waits for that. The guest's
	// connection is closed already. Remove is called once Plan's entries are in
	// the cleanup list, and again after an error.
	Remove(ctx context.Context) error
}

// Connection is the standard input (Write) and output (Read) of a container;
// see guest.Options.Conn.
type Connection interface {
	io.ReadWriteCloser
	// Stderr returns the beginning of what was written to the container's
	// standard error so far.
	Stderr() string
}

// Listed is a listed sandbox, with the entries of its cleanup list.
type Listed struct {
	sandbox.Listing
	Entries []ownership.NumberedEntry
}
