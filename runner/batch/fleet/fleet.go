// Package fleet runs one batch's trials on many machines, connected by NATS JetStream.
//
// A coordinator puts trials' names into a work queue. Workers take them, run the trials
// and put the results into a [results.Store]. NATS carries only names, acknowledgements
// and heartbeats. The store is the truth: workers acknowledge a trial after storing its
// result, and the coordinator queues every trial again that has neither a result nor a
// place in the queue. So the queue may be lost at any time.
//
// Objects in the store:
//
//	runs/000001             a coordinator's first run, a [Run] in JSON
//	ends/000001             that run has ended
//	claims/TRIAL-1          the first attempt at a trial, and its worker
//	trials/TRIAL.tar.gz     a finished trial's directory, with result.json
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

	// Buckets is the number of subjects that images are spread over.
	Buckets = 64
	// AckWait is the time after which a trial without heartbeats is delivered to
	// another worker. Workers send three in that time.
	AckWait = time.Minute
	// maxAckPending bounds the running trials per subject.
	maxAckPending = 20_000
	// maxMessage bounds a queue message, a trial's key, in bytes.
	maxMessage = 64 << 10
	// maxRun bounds a run's description in bytes.
	maxRun = 64 << 20
	// requestTime bounds a NATS request.
	requestTime = 10 * time.Second
)

var errRequestTime = fmt.Errorf("NATS did not answer within %s", requestTime)

// Run describes a coordinator's run to workers.
type Run struct {
	SchemaVersion int `json:"schema_version"` // 1
	// Batch names the queue. It is the same for all of a store's runs.
	Batch string     `json:"batch"`
	Spec  batch.Spec `json:"spec"`
	// Paths are the tasks' absolute paths on the coordinator's machine.
	Paths []string `json:"paths"`
	// Buckets are the subjects of tasks with trials, by task ID, from 0 to [Buckets]-1.
	// Tasks with the same image have the same bucket. The coordinator chooses them,
	// because images may be named by paths, which differ between machines.
	Buckets map[string]int `json:"buckets"`
	// MaxCostMicroUSD bounds the cost of all trials together, in millionths of a
	// dollar; 0 is no bound. Workers ask the coordinator what is left before each
	// trial.
	MaxCostMicroUSD int64 `json:"max_cost_micro_usd,omitempty"`

	number int
}

// name returns the second part of the names of the run's objects.
func (r Run) name() string { return fmt.Sprintf("%06d", r.number) }

func (r Run) stream() string { return "caisson-" + r.Batch }

func (r Run) subject(k batch.Key) string {
	sum := sha256.Sum256([]byte(k.Name()))
	return fmt.Sprintf("caisson.%s.%d.%s", r.Batch, r.Buckets[k.Task], hex.EncodeToString(sum[:16]))
}

// costSubject returns the subject at which the coordinator answers what trials may
// still cost, as a decimal number of millionths of a dollar. It has fewer parts than
// the queue's subjects.
func (r Run) costSubject() string { return fmt.Sprintf("caisson.%s.cost-%s", r.Batch, r.name()) }

// bucketsOf returns the buckets of the trials' tasks, by image.
func bucketsOf(trials []batch.Trial) map[string]int {
	buckets := map[string]int{}
	for _, t := range trials {
		h := fnv.New32a()
		_, _ = io.WriteString(h, t.Definition.Environment.Image) // never fails
		buckets[t.Task] = int(h.Sum32() % Buckets)
	}
	return buckets
}

// list returns the buckets that have trials, sorted.
func (r Run) list() []int {
	return slices.Compact(slices.Sorted(maps.Values(r.Buckets)))
}

func consumerName(bucket int) string { return fmt.Sprintf("bucket-%d", bucket) }

func objectOf(k batch.Key) string { return trialsDir + "/" + k.Name() + suffix }

// RunError reports a run's description that this program can't read.
type RunError struct {
	Name string
	Err  error
}

func (e *RunError) Error() string { return fmt.Sprintf("read run %s: %v", e.Name, e.Err) }

func (e *RunError) Unwrap() error { return e.Err }

// LatestRun returns a store's latest run and whether it has ended. The error wraps
// [ErrNoRun] if there is none, and a [RunError] if it can't be read. Other errors are
// the store's.
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

// beginRun creates the next run in a store and returns it with its number and batch
// name. A store has only one batch; for another one the error wraps a
// [batch.MismatchError].
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
		err = putBytes(ctx, s, runsDir+"/"+next.name(), text)
		if !errors.Is(err, results.ErrExists) {
			return next, err
		}
	}
}

// endRun records that a run has ended, which ends the workers. It retries faults of the
// store until ctx ends.
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

// hasCode reports whether err is a JetStream error with one of the codes.
func hasCode(err error, codes ...jetstream.ErrorCode) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && slices.Contains(codes, api.ErrorCode)
}
