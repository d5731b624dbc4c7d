// Package fleet runs the trials of one batch on many machines, with NATS JetStream between
// them.
//
// A coordinator puts the names of trials into a work queue, and workers take them out, run
// them and put their results into a [results.Store]. Only names, acknowledgements and
// heartbeats go through NATS. The store is the truth: a worker acknowledges a trial after its
// result is stored, and the coordinator queues again whatever has neither a result nor a
// place in the queue, so the queue may be lost at any moment.
//
// Objects of the store:
//
//	runs/000001             the first run of a coordinator, a [Run] in JSON
//	ends/000001             that run has ended
//	claims/TRIAL-1          the first try of a trial, by which worker
//	trials/TRIAL.tar.gz     the directory of a finished trial, with result.json
package fleet

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/runner/batch/results"
)

const (
	runsDir   = "runs"
	endsDir   = "ends"
	claimsDir = "claims"
	trialsDir = "trials"
	suffix    = ".tar.gz"

	// Buckets is the number of subjects over which images are spread.
	Buckets = 64
	// AckWait is the time after which a trial whose worker sends no heartbeat is
	// delivered to another one. Workers send three in that time.
	AckWait = time.Minute
	// maxAckPending bounds the trials that run at a time, for each subject.
	maxAckPending = 20_000
	// maxMessage bounds a message of the queue, in bytes: the key of a trial.
	maxMessage = 64 << 10
	// maxRun bounds a description of a run, in bytes.
	maxRun = 64 << 20
	// requestTime bounds a request to NATS.
	requestTime = 10 * time.Second
)

// errRequestTime is why a request to NATS ends.
var errRequestTime = fmt.Errorf("NATS did not answer within %s", requestTime)

// Run describes a run of a coordinator to its workers.
type Run struct {
	SchemaVersion int `json:"schema_version"` // 1
	// Batch names the queue. All runs of a store have the same.
	Batch string     `json:"batch"`
	Spec  batch.Spec `json:"spec"`
	// Paths are absolute paths of tasks on the machine of the coordinator.
	Paths []string `json:"paths"`
	// Buckets are the subjects of the tasks that have trials, by their ids: tasks with one
	// image have the same, from 0 to [Buckets]-1. The coordinator chooses them, since images
	// may be named by paths, which differ between machines.
	Buckets map[string]int `json:"buckets"`
	// MaxCostMicroUSD bounds the cost of all trials together, in millionths of a dollar: a
	// worker asks the coordinator what is left before each trial. 0 is no bound.
	MaxCostMicroUSD int64 `json:"max_cost_micro_usd,omitempty"`

	number int
}

// name returns the second part of the names of the run's objects.
func (r Run) name() string { return fmt.Sprintf("%06d", r.number) }

// stream returns the name of the queue.
func (r Run) stream() string { return "caisson-" + r.Batch }

// subject returns where the queue has a trial.
func (r Run) subject(k batch.Key) string {
	sum := sha256.Sum256([]byte(k.Name()))
	return fmt.Sprintf("caisson.%s.%d.%s", r.Batch, r.Buckets[k.Task], hex.EncodeToString(sum[:16]))
}

// costSubject returns where the coordinator of the run answers what trials may still cost, as
// a decimal number of millionths of a dollar. It has fewer parts than those of the queue.
func (r Run) costSubject() string { return fmt.Sprintf("caisson.%s.cost-%s", r.Batch, r.name()) }

// bucketsOf returns the buckets of the tasks of trials, by their images.
func bucketsOf(trials []batch.Trial) map[string]int {
	buckets := map[string]int{}
	for _, t := range trials {
		h := fnv.New32a()
		_, _ = io.WriteString(h, t.Definition.Environment.Image) // never fails
		buckets[t.Task] = int(h.Sum32() % Buckets)
	}
	return buckets
}

// list returns the buckets that have trials, in their order.
func (r Run) list() []int {
	return slices.Compact(slices.Sorted(maps.Values(r.Buckets)))
}

// consumerName returns the name of the consumer of a bucket.
func consumerName(bucket int) string { return fmt.Sprintf("bucket-%d", bucket) }

// objectOf returns the name of the object with a trial's result.
func objectOf(k batch.Key) string { return trialsDir + "/" + k.Name() + suffix }

// RunError reports a description of a run that this program can't read.
type RunError struct {
	Name string
	Err  error
}

// Error names the run.
func (e *RunError) Error() string { return fmt.Sprintf("read run %s: %v", e.Name, e.Err) }

// Unwrap returns the reason.
func (e *RunError) Unwrap() error { return e.Err }

// LatestRun returns the latest run in a store and whether it has ended. Its error wraps
// [ErrNoRun] if there is none, and a [RunError] if it can't be read; others are faults of the
// store.
func LatestRun(ctx context.Context, s results.Store) (r Run, ended bool, err error) {
	names, err := s.List(ctx, runsDir)
	if err != nil {
		return r, false, err
	}
	if len(names) == 0 {
		return r, false, ErrNoRun
	}
	last := names[len(names)-1]
	in, err := s.Get(ctx, runsDir+"/"+last)
	if err != nil {
		return r, false, err
	}
	text, err := io.ReadAll(io.LimitReader(in, maxRun))
	if err = errors.Join(err, in.Close()); err != nil {
		return r, false, err
	}
	err = json.Unmarshal(text, &r)
	if err == nil && r.SchemaVersion != 1 {
		err = fmt.Errorf("schema version %d: want 1", r.SchemaVersion)
	}
	if err == nil {
		r.number, err = strconv.Atoi(last)
	}
	for id, b := range r.Buckets {
		if err == nil && (b < 0 || b >= Buckets) {
			err = fmt.Errorf("task %q has bucket %d: want 0 to %d", id, b, Buckets-1)
		}
	}
	if err != nil {
		return r, false, &RunError{last, err}
	}
	ended, err = s.Has(ctx, endsDir+"/"+r.name())
	return r, ended, err
}

// ErrNoRun is the error for a store without a run.
var ErrNoRun = errors.New("no coordinator has begun a run in the store")

// beginRun creates the next run in a store and returns it with its number and the name of the
// batch. A store has one batch: its error wraps a [batch.MismatchError] for another one.
func beginRun(ctx context.Context, s results.Store, next Run) (Run, error) {
	for {
		last, _, err := LatestRun(ctx, s)
		if err != nil && !errors.Is(err, ErrNoRun) {
			return last, err
		}
		if err == nil {
			if err := next.Spec.CheckSpec(last.Spec); err != nil {
				return last, fmt.Errorf("%s: %w", s, err)
			}
		}
		next.SchemaVersion, next.number = 1, last.number+1
		next.Batch = cmp.Or(last.Batch, rand.Text())
		text, err := json.Marshal(next)
		if err != nil {
			return next, err
		}
		if err = putBytes(ctx, s, runsDir+"/"+next.name(), text); !errors.Is(err, results.ErrExists) {
			return next, err
		}
	}
}

// endRun records that a run has ended. Faults of the store are tried again until ctx ends:
// workers end by it.
func endRun(ctx context.Context, s results.Store, r Run) error {
	for {
		err := putBytes(ctx, s, endsDir+"/"+r.name(), []byte(time.Now().UTC().Format(time.RFC3339)+"\n"))
		if err == nil || errors.Is(err, results.ErrExists) {
			return nil
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return err
		}
	}
}

func putBytes(ctx context.Context, s results.Store, name string, text []byte) error {
	return s.Put(ctx, name, bytes.NewReader(text), int64(len(text)))
}

// hasCode reports whether an error is one of a request to JetStream with one of some codes.
func hasCode(err error, codes ...jetstream.ErrorCode) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	if !ok {
		return false
	}
	return slices.Contains(codes, api.ErrorCode)
}

// trialName returns the name of the trial whose object is called name.
func trialName(name string) (string, bool) { return strings.CutSuffix(name, suffix) }
