package server

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner/trace"
)

const (
	// keptIndexes bounds the indexes of sessions that are not live here.
	keptIndexes = 32
	// indexEvery is how many records of a live session are added to its index
	// at once, and how many records a stream passes over before it has the rest of
	// its session indexed.
	indexEvery = 500
)

// indexes has the indexes of the records of live sessions, and of the sessions
// that were followed last. They are extended in the background, and no request
// waits for them. It is safe for concurrent use.
type indexes struct {
	log  *zap.Logger
	ctx  context.Context //nolint:containedctx // that of the goroutines that extend
	stop context.CancelCauseFunc
	// turn is held while an index is extended: one at a time.
	turn    sync.Mutex
	running sync.WaitGroup

	mu     sync.Mutex
	closed bool
	kept   map[string]*indexed
	order  []string // those that are not live, the last used one last
}

// indexed is the index of one session. Its fields are guarded by indexes.mu.
type indexed struct {
	index *trace.Index // nil before it is begun
	live  bool
	// busy reports that a goroutine extends it, and more that it has to go on.
	busy, more bool
}

func newIndexes(log *zap.Logger) *indexes {
	x := &indexes{log: log, kept: map[string]*indexed{}}
	x.ctx, x.stop = context.WithCancelCause(context.Background())
	return x
}

// before returns the last checkpoint of a session at or before a record, if there
// is one in the open file.
func (x *indexes) before(id string, file *os.File, seq int64) (trace.Checkpoint, bool) {
	x.mu.Lock()
	e := x.kept[id]
	if e == nil || e.index == nil {
		x.mu.Unlock()
		return trace.Checkpoint{}, false
	}
	x.use(id, e)
	index := e.index
	x.mu.Unlock()
	if !index.Of(file) {
		x.drop(id)
		return trace.Checkpoint{}, false
	}
	return index.Before(seq)
}

// extend has a session's records indexed up to their end, soon. live keeps the
// index until the session is released.
func (x *indexes) extend(id, dir string, live bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return
	}
	e := x.kept[id]
	if e == nil {
		e = &indexed{}
		x.kept[id] = e
	}
	e.live = e.live || live
	x.use(id, e)
	if e.busy {
		e.more = true
		return
	}
	e.busy = true
	x.running.Go(func() { x.run(id, dir, e) })
}

// run extends one index until it has all that it was asked for.
func (x *indexes) run(id, dir string, e *indexed) {
	for {
		err := x.extendOnce(dir, e)
		if err != nil && x.ctx.Err() == nil {
			x.log.Warn("the records of a session are not indexed", zap.String("session", id), zap.Error(err))
		}
		x.mu.Lock()
		if e.busy = e.more && err == nil && !x.closed; !e.busy {
			x.mu.Unlock()
			return
		}
		e.more = false
		x.mu.Unlock()
	}
}

func (x *indexes) extendOnce(dir string, e *indexed) error {
	x.turn.Lock()
	defer x.turn.Unlock()
	t, err := openTail(dir)
	if err != nil {
		return fmt.Errorf("index records: %w", err)
	}
	defer t.close()
	x.mu.Lock()
	index := e.index
	x.mu.Unlock()
	if index == nil || !index.Of(t.file) {
		if index, err = trace.NewIndex(t.file); err != nil {
			return err
		}
		x.mu.Lock()
		e.index = index
		x.mu.Unlock()
	}
	return index.Extend(x.ctx, t.file)
}

// use notes that an index was used, and removes those that were not for longest.
// The caller holds mu.
func (x *indexes) use(id string, e *indexed) {
	x.order = slices.DeleteFunc(x.order, func(other string) bool { return other == id })
	if e.live {
		return
	}
	x.order = append(x.order, id)
	for len(x.order) > keptIndexes {
		delete(x.kept, x.order[0])
		x.order = x.order[1:]
	}
}

// release marks a session as no longer live.
func (x *indexes) release(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.kept[id]; e != nil {
		e.live = false
		x.use(id, e)
	}
}

// drop removes the index of a session.
func (x *indexes) drop(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.kept[id]; e != nil {
		e.index = nil
	}
}

// close ends what is being extended, and waits for it.
func (x *indexes) close() {
	x.mu.Lock()
	x.closed = true
	x.mu.Unlock()
	x.stop(errStopping)
	x.running.Wait()
}
