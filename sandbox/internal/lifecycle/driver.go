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

// ErrNotShared means that the container does not see this machine's file
// system, so the workspace can't be mounted in it. It comes with
// sandbox.ErrUnavailable; another backend may work.
var ErrNotShared = errors.New("the engine does not share this file system")

// Driver is an engine or runtime. It is safe for concurrent use.
type Driver interface {
	// NewContainer returns the container of a sandbox to be created. It checks
	// the spec and the system, and makes nothing.
	NewContainer(ctx context.Context, p *Preparation) (Container, error)
	// RemoveEntry removes an entry of a dead session's cleanup list and reports
	// whether it existed. The list is a file, so it must check that the entry
	// belongs to the session.
	RemoveEntry(ctx context.Context, session string, e ownership.Entry) (bool, error)
	// RemoveUnlisted removes the orphans that only the engine knows. It returns
	// those that it removed even with an error.
	RemoveUnlisted(ctx context.Context) ([]sandbox.Orphan, error)
	// Prune removes cached data that no start has used for long.
	Prune(ctx context.Context) error
	// Inspect sets the state and memory of the listed sandboxes, keyed by
	// session, and adds those that only the engine knows.
	Inspect(ctx context.Context, listed map[string]*Listed) error
}

// Container is the container of one sandbox. Its methods are called in this
// order by one goroutine at a time, except that Start runs during the
// handshake. After an error only ExplainFailure and Remove are called.
type Container interface {
	// ID returns the engine's or runtime's name for the container.
	ID() string
	// FetchImage gets the image if the engine provides it itself, and reports
	// whether it does. Otherwise Preparation.Image describes the image.
	FetchImage(ctx context.Context) (bool, error)
	// Plan returns the container's parts on the host, for the cleanup list.
	Plan(ctx context.Context) ([]ownership.Entry, error)
	// Begin starts work that need not wait for the workspace's mounts.
	Begin(ctx context.Context) error
	// Identity returns the commands' identity in a container with these mounts.
	Identity(m *workmount.Mounts) Identity
	// Create creates the container and returns its standard streams. It may
	// finish only during Start.
	Create(ctx context.Context) (Connection, error)
	// Start returns once the container runs. If it fails, the connection is
	// closed.
	Start(ctx context.Context) error
	// Attest adds to the attestation what it reads back from the engine or
	// runtime and the kernel. It returns every way in which the container is
	// weaker than requested.
	Attest(ctx context.Context, conn *guest.Conn, a *sandbox.Attestation) error
	// ExplainFailure adds what the engine, runtime or kernel know about the
	// cause to the error of a failed start.
	ExplainFailure(ctx context.Context, err error) error
	// ExplainLoss adds the cause to the loss of a running sandbox, and kills
	// what still runs. It is the only method that may be running when Remove is
	// due; ctx then ends.
	ExplainLoss(ctx context.Context, loss error) error
	// Remove kills what runs in the container and removes it with everything
	// that the engine or runtime made for it, before it returns. The guest's
	// connection is closed already. Remove is called once Plan's entries are in
	// the cleanup list, and again after an error.
	Remove(ctx context.Context) error
}

// Connection is a container's standard input (Write) and output (Read); see
// guest.Options.Conn.
type Connection interface {
	io.ReadWriteCloser
	// Stderr returns the beginning of the container's standard error so far.
	Stderr() string
}

// Listed is a listed sandbox with the entries of its cleanup list.
type Listed struct {
	sandbox.Listing
	Entries []ownership.NumberedEntry
}
