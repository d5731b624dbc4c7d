package trace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
)

const (
	// A chunk ends at chunkSteps steps or chunkBytes bytes of records, once no
	// call is open. At twice as many it ends anyway.
	chunkSteps = 100
	chunkBytes = 1 << 20
	// maxStates bounds the texts of calls that are open where chunks begin. Beyond
	// it, a chunk is read from the beginning of an earlier one.
	maxStates = 4 << 20
	// readBytes is how much is read while others wait.
	readBytes = 128 << 10
)

// Index finds the steps of a session without reading its records from their
// beginning. It holds the places where chunks begin and the steps of the last
// chunk, but no open file. It is safe for concurrent use.
type Index struct {
	most    int           // chunkSteps, except in tests
	reading chan struct{} // has an element while records are read

	mu      sync.Mutex
	session Session
	file    os.FileInfo // of the records, nil before they are read
	at      record.Position
	whole   bool
	steps   *Steps
	over    Overview
	line    *timeline
	chart   *turnChart
	chunks  []chunk
	last    []Step  // of the last chunk
	failed  []int64 // numbers of failed steps
	states  int     // bytes, of at most maxStates
}

// Chunk is a part of a session's steps. All steps of a record are in one chunk.
type Chunk struct {
	First, Last int64 // the numbers of its first and last step
	Steps       int
	Begun       time.Time // when the first step began
}

type chunk struct {
	Chunk
	at    record.Position
	state *Steps // there, never changed; nil beyond maxStates
}

// NewIndex returns an empty index. [Index.Extend] fills it.
func NewIndex(s Session) *Index {
	x := &Index{most: chunkSteps, reading: make(chan struct{}, 1)}
	x.reset(s)
	return x
}

func (x *Index) reset(s Session) {
	x.session, x.file, x.at, x.whole = s, nil, record.StartPosition(), false
	x.steps, x.over, x.line, x.chart = NewSteps(x.addStep), newOverview(s), newTimeline(), newTurnChart()
	x.over.Hash = x.at.Hash
	x.chunks, x.last, x.failed, x.states = nil, nil, nil, 0
}

// Extend reads what was added to the records. Callers at the same time share
// one read, and the rest of the index can be used meanwhile. Damage ends the
// steps and is reported by Overview. If another file has taken the place of the
// records, as when retention shortens a session, the index begins anew. Errors
// are the cause of ctx or of type [*Error]; the next call continues.
func (x *Index) Extend(ctx context.Context) error {
	select {
	case x.reading <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-x.reading }()
	f, end, err := x.open()
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only read
	if x.Whole() {
		return nil
	}
	in := readFrom(f, x.at, end)
	for more := true; more; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if more, err = x.read(in); err != nil {
			return err
		}
	}
	return nil
}

// open opens the records and returns where they end now.
func (x *Index) open() (*os.File, int64, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.session
	if filepath.Base(s.Path) == record.TraceFile { // retention replaces it
		found, err := sessionInDir(s.Dir)
		if err != nil {
			return nil, 0, err
		}
		s = found
	}
	f, err := s.openFile()
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(&Error{Reason: Unreadable, Name: s.ID, Err: err}, f.Close())
	}
	if x.file != nil && (!os.SameFile(x.file, info) || info.Size() < x.at.Offset) {
		x.reset(s)
	}
	x.session, x.file = s, info
	x.over.Pruned, x.over.Live = s.Pruned, !s.Pruned && sessiondir.SessionLives(s.Dir)
	x.over.Torn = false // until read finds it again
	x.whole = x.over.Damage != "" || info.Size() == x.at.Offset
	return f, info.Size(), nil
}

// read adds some records, and reports whether there may be more.
func (x *Index) read(in *record.Reader) (more bool, _ error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	defer func() {
		x.at = in.Position()
		x.over.Hash, x.over.Omitted = x.at.Hash, x.at.Seq-x.over.Records
	}()
	for begin := in.Position().Offset; in.Position().Offset < begin+readBytes; {
		at := in.Position()
		r, err := in.Next()
		switch {
		case errors.Is(err, record.ErrChain):
			x.over.Damage, x.whole = err.Error(), true
			return false, nil
		case errors.Is(err, io.EOF):
			x.over.Torn, x.whole = in.Torn(), true
			return false, nil
		case err != nil:
			return false, &Error{Reason: Unreadable, Name: x.session.ID, Err: err}
		}
		if x.chunkIsFull(at) {
			c := chunk{at: at}
			if n := x.steps.weight(); x.states+n <= maxStates || len(x.chunks) == 0 {
				c.state = x.steps.clone()
				x.states += n
			}
			x.chunks, x.last = append(x.chunks, c), nil
		}
		x.over.addRecord(r)
		x.steps.Record(r)
	}
	return true, nil
}

// chunkIsFull reports whether the record at a place begins a chunk. It is asked
// before that record, and not after the previous one, so that the newest step
// is always in memory.
func (x *Index) chunkIsFull(at record.Position) bool {
	if len(x.chunks) == 0 {
		return true
	}
	c := x.chunks[len(x.chunks)-1]
	most, size := x.most, int64(chunkBytes)
	if len(x.steps.open) > 0 {
		most, size = 2*most, 2*size
	}
	return c.Steps >= most || c.Steps > 0 && at.Offset-c.at.Offset >= size
}

func (x *Index) addStep(s Step) {
	x.over.countStep(s)
	x.line.addStep(s)
	x.chart.addStep(s)
	c := &x.chunks[len(x.chunks)-1].Chunk
	if c.Steps == 0 {
		c.First, c.Begun = s.Seq, s.Start
	}
	c.Last, c.Steps = s.Seq, c.Steps+1
	x.last = append(x.last, s)
	if s.Failed {
		x.failed = append(x.failed, s.Seq)
	}
}

// scan visits the steps from the beginning of a chunk to a place, until visit
// returns false. It verifies that the records have not changed since they were
// indexed.
func (s Session) scan(ctx context.Context, from chunk, to record.Position, visit func(Step) bool) error {
	f, err := s.openFile()
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only read
	in := readFrom(f, from.at, to.Offset)
	steps, more := from.state.clone(), true
	steps.each = func(s Step) { more = more && visit(s) }
	for more {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r, err := in.Next()
		if errors.Is(err, io.EOF) && in.Hash() == to.Hash {
			return nil
		}
		if err != nil {
			return &Error{Reason: Unreadable, Name: s.ID, Err: fmt.Errorf("they are no longer as they were: %w", err)}
		}
		steps.Record(r)
	}
	return nil
}

// stateAt returns the chunk, or the last one before it whose state is known.
func (x *Index) stateAt(chunk int) chunk {
	for x.chunks[chunk].state == nil {
		chunk--
	}
	return x.chunks[chunk]
}

// chunkAfter returns the chunk with the first step beyond a number, or -1.
func (x *Index) chunkAfter(seq int64) int {
	all := x.chunksWithSteps()
	n := sort.Search(len(all), func(i int) bool { return all[i].Last > seq })
	if n == len(all) {
		return -1
	}
	return n
}

// chunksWithSteps leaves out a last chunk that has no step yet.
func (x *Index) chunksWithSteps() []chunk {
	if n := len(x.chunks); n > 0 && x.chunks[n-1].Steps == 0 {
		return x.chunks[:n-1]
	}
	return x.chunks
}

// Chunks returns the chunks so far. The last one grows.
func (x *Index) Chunks() []Chunk {
	x.mu.Lock()
	defer x.mu.Unlock()
	var out []Chunk
	for _, c := range x.chunksWithSteps() {
		out = append(out, c.Chunk)
	}
	return out
}

// Steps returns the complete steps of a chunk, counted from 0, which must not be
// changed. It reads the chunk again, unless it is the last. Errors are of type
// [*Error].
func (x *Index) Steps(chunk int) ([]Step, error) {
	x.mu.Lock()
	if chunk < 0 || chunk >= len(x.chunks) {
		defer x.mu.Unlock()
		return nil, &Error{Reason: Unreadable, Name: x.session.ID, Err: fmt.Errorf("there is no part %d of %d", chunk, len(x.chunks))}
	}
	if chunk == len(x.chunks)-1 {
		defer x.mu.Unlock()
		return slices.Clip(x.last), nil
	}
	s, c, from, to := x.session, x.chunks[chunk], x.stateAt(chunk), x.chunks[chunk+1].at
	x.mu.Unlock()
	out := make([]Step, 0, c.Steps)
	err := s.scan(context.Background(), from, to, func(s Step) bool {
		if s.Seq >= c.First {
			out = append(out, s)
		}
		return true
	})
	return out, err
}

// Find returns the chunk with the step that has this number or the next one, or
// -1 if there is none.
func (x *Index) Find(seq int64) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.chunkAfter(max(seq, 1) - 1)
}

// After returns the next complete steps beyond a number, at most the rest of a
// chunk and another. They must not be changed. There are none at the end, or if
// the records were replaced; Extend reports that.
func (x *Index) After(seq int64) []Step {
	x.mu.Lock()
	n := x.chunkAfter(seq)
	x.mu.Unlock()
	steps, err := x.Steps(n)
	if err != nil {
		return nil
	}
	steps = steps[sort.Search(len(steps), func(i int) bool { return steps[i].Seq > seq }):]
	if more, err := x.Steps(n + 1); err == nil {
		steps = append(steps, more...)
	}
	return steps
}

// Open returns copies of the calls that have no result yet.
func (x *Index) Open() []Step {
	x.mu.Lock()
	defer x.mu.Unlock()
	var out []Step
	for _, id := range x.steps.order {
		out = append(out, x.steps.open[id].copyOpen())
	}
	return out
}

// visitOpen visits the open calls as they are if nothing follows.
func (x *Index) visitOpen(visit func(Step)) {
	ended := x.steps.clone()
	ended.each = visit
	ended.Close()
}

// Overview summarizes what was read so far.
func (x *Index) Overview() Overview {
	x.mu.Lock()
	defer x.mu.Unlock()
	o := x.over
	x.visitOpen(o.countStep)
	return o
}

// Whole reports whether the index has all records that the file had at the last
// Extend, up to the first damaged one.
func (x *Index) Whole() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.whole
}

// Failure returns the number of the next failed step after a number, or of the
// last one before it.
func (x *Index) Failure(after int64, back bool) (seq int64, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := sort.Search(len(x.failed), func(i int) bool { return x.failed[i] > after || back && x.failed[i] == after })
	if back {
		n--
	}
	if n < 0 || n == len(x.failed) {
		return 0, false
	}
	return x.failed[n], true
}

// Search returns the number of the next complete step after a number that has a
// text, in either case. It reads the records from there until ctx ends.
func (x *Index) Search(ctx context.Context, text string, after int64) (seq int64, ok bool, err error) {
	x.mu.Lock()
	n := x.chunkAfter(after)
	if n < 0 || text == "" {
		x.mu.Unlock()
		return 0, false, nil
	}
	s, from, to := x.session, x.stateAt(n), x.at
	x.mu.Unlock()
	text = strings.ToLower(text)
	err = s.scan(ctx, from, to, func(s Step) bool {
		if s.Seq > after && slices.ContainsFunc(s.texts(), func(t string) bool { return strings.Contains(strings.ToLower(t), text) }) {
			seq, ok = s.Seq, true
		}
		return !ok
	})
	return seq, ok, err
}

// Timeline returns the data of the template "timeline", whose links lead to
// base.
func (x *Index) Timeline(base string) TimelineView {
	x.mu.Lock()
	defer x.mu.Unlock()
	line := x.line.clone()
	x.visitOpen(line.addStep)
	return line.layOut(base)
}

// Chart returns the data of the template "turnchart".
func (x *Index) Chart() TurnChart {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.chart.layOut()
}
