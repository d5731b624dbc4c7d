package apply

import (
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/identity"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Readers read the workspace. They live as long as the process and are safe for
// concurrent use.
type Readers struct {
	threads *identity.Pool
	reader  *workspace.Reader
}

// NewReaders starts the threads and opens the workspace.
func NewReaders(o Options) (*Readers, error) {
	threads, dir, err := o.open()
	if err != nil {
		return nil, err
	}
	r := &Readers{threads: threads}
	threads.Do(func() {
		r.reader, err = workspace.NewReader(dir, workspace.ReaderOptions{OwnThread: true})
	})
	return r, err
}

// Do lends the Reader to f, on one of the threads. F must read on its own
// goroutine alone.
func (r *Readers) Do(f func(*workspace.Reader)) {
	r.threads.Do(func() { f(r.reader) })
}
