package trace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/caisson-run/caisson/runner/record"
)

// checkpointSteps is the least number of steps between two checkpoints.
const checkpointSteps = 200

// Checkpoint is a place in a session's records at which reading can begin: no
// tool call is open there.
type Checkpoint struct {
	// Offset is the line's offset in the file, and Seq its record's number.
	Offset int64
	Seq    int64
	// Turn counts the turns that began before it.
	Turn int
	// Prev is the hash of the line before, as this line has it.
	Prev string
}

// Index has the checkpoints of one file of records, in order, as far as it has
// been extended. Extend verifies the chain, so every record before a checkpoint
// is unchanged. It is safe for concurrent use.
type Index struct {
	file os.FileInfo

	// extending is held during Extend and guards the fields below it.
	extending sync.Mutex
	at        record.Position
	steps     *Steps
	made      int // steps since the last checkpoint
	failed    error

	mu     sync.Mutex
	points []Checkpoint
}

// NewIndex returns an empty index of an open file of records.
func NewIndex(file *os.File) (*Index, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("index records: %w", err)
	}
	x := &Index{file: info, at: record.StartPosition()}
	x.steps = NewSteps(func(Step) { x.made++ })
	return x, nil
}

// Of reports whether the index belongs to an open file. Retention replaces the
// file of a session's records.
func (x *Index) Of(file *os.File) bool {
	info, err := file.Stat()
	return err == nil && os.SameFile(info, x.file)
}

// Extend reads the records that were added to the file since the last call,
// until it reaches the end or ctx ends. It waits for a call that is already
// extending the index. A damaged chain ends the index: the error wraps
// record.ErrChain, now and in all further calls.
func (x *Index) Extend(ctx context.Context, file *os.File) error {
	x.extending.Lock()
	defer x.extending.Unlock()
	if x.failed != nil {
		return x.failed
	}
	in := record.ResumeReader(io.NewSectionReader(file, x.at.Offset, 1<<62), x.at)
	for ctx.Err() == nil {
		before := in.Position()
		if x.made >= checkpointSteps && x.steps.idle() {
			x.addCheckpoint(Checkpoint{Offset: before.Offset, Seq: before.Seq + 1, Turn: x.steps.turn, Prev: before.Hash})
			x.made = 0
		}
		rec, err := in.Next()
		x.at = in.Position()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, record.ErrChain):
			x.failed = fmt.Errorf("index records: %w", err)
			return x.failed
		case err != nil:
			return fmt.Errorf("index records: %w", err)
		}
		x.steps.Record(rec)
	}
	return fmt.Errorf("index records: %w", context.Cause(ctx))
}

func (x *Index) addCheckpoint(c Checkpoint) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.points = append(x.points, c)
}

// Before returns the last checkpoint at or before the record with number seq.
func (x *Index) Before(seq int64) (Checkpoint, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	n, _ := slices.BinarySearchFunc(x.points, seq, func(c Checkpoint, seq int64) int {
		return cmp.Or(cmp.Compare(c.Seq, seq), -1)
	})
	if n == 0 {
		return Checkpoint{}, false
	}
	return x.points[n-1], true
}
