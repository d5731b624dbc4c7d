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
	// indexEvery is the number of records of a live session that are indexed at
	// once. A stream that skips twice as many has its session indexed.
	indexEvery = 500
)

// indexes holds the indexes of live sessions, and of other recently followed
// ones. They are extended in the background; no request waits for that. It is
// safe for concurrent use.
type indexes struct {
	log  *zap.Logger
	ctx  context.Context //nolint:containedctx // of the goroutines that extend
	stop context.CancelCauseFunc
	// turn is held while an index is extended: one at a time.
	turn    sync.Mutex
	running sync.WaitGroup

	mu     sync.Mutex
	closed bool
	kept   map[string]*indexed
	order  []string // sessions that are not live, the last used one last
}

// indexed is the index of one session. indexes.mu guards its fields.
type indexed struct {
	index *trace.Index // nil before the first extension
	live  bool
	// busy reports that a goroutine extends it, more that it must then go on.
	busy, more bool
}

func newIndexes(log *zap.Logger) *indexes {
	x := &indexes{log: log, kept: map[string]*indexed{}}
	x.ctx, x.stop = context.WithCancelCause(context.Background())
	return x
}

// checkpointBefore returns a session's last checkpoint at or before a record,
// if there is one in the open file.
func (x *indexes) checkpointBefore(id string, file *os.File, seq int64) (trace.Checkpoint, bool) {
	x.mu.Lock()
	e := x.kept[id]
	if e == nil || e.index == nil {
		x.mu.Unlock()
		return trace.Checkpoint{}, false
	}
	x.markUsed(id, e)
	index := e.index
	x.mu.Unlock()
	if !index.Of(file) {
		x.dropIndex(id)
		return trace.Checkpoint{}, false
	}
	return index.Before(seq)
}

// extendIndex starts to index a session's records up to their end. If live is
// true, the index is kept until releaseIndex.
func (x *indexes) extendIndex(id, dir string, live bool) {
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
	x.markUsed(id, e)
	if e.busy {
		e.more = true
		return
	}
	e.busy = true
	x.running.Go(func() { x.extendLoop(id, dir, e) })
}

// extendLoop extends one index until no more is requested.
func (x *indexes) extendLoop(id, dir string, e *indexed) {
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

// markUsed marks an index as used, and removes the least recently used ones.
// The caller holds mu.
func (x *indexes) markUsed(id string, e *indexed) {
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

func (x *indexes) releaseIndex(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.kept[id]; e != nil {
		e.live = false
		x.markUsed(id, e)
	}
}

func (x *indexes) dropIndex(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.kept[id]; e != nil {
		e.index = nil
	}
}

// close stops extending indexes and waits for that.
func (x *indexes) close() {
	x.mu.Lock()
	x.closed = true
	x.mu.Unlock()
	x.stop(errStopping)
	x.running.Wait()
}
