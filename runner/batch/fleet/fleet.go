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
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
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

	number int
}

// name returns the second part of the names of the run's objects.
func (r Run) name() string { return fmt.Sprintf("%06d", r.number) }

// stream returns the name of the queue.
func (r Run) stream() string { return "caisson-" + r.Batch }

// subject returns where the queue has a trial.
func (r Run) subject(t batch.Trial) string {
	sum := sha256.Sum256([]byte(t.Key.Name()))
	return fmt.Sprintf("caisson.%s.%d.%s", r.Batch, bucketOf(t), hex.EncodeToString(sum[:16]))
}

// bucketOf returns the bucket of a trial's image.
func bucketOf(t batch.Trial) int {
	h := fnv.New32a()
	_, _ = io.WriteString(h, t.Definition.Environment.Image) // never fails
	return int(h.Sum32() % Buckets)
}

// consumerName returns the name of the consumer of a bucket.
func consumerName(bucket int) string { return fmt.Sprintf("bucket-%d", bucket) }

// objectOf returns the name of the object with a trial's result.
func objectOf(k batch.Key) string { return trialsDir + "/" + k.Name() + suffix }

// Conn is a connection to NATS. The caller of [Connect] closes it.
type Conn = nats.Conn

// Connect connects to a NATS server or one of a cluster, whose URLs are separated by commas.
// Credentials is the path of a credentials file, "" for none. A connection that is lost
// later is made again until it is closed; report is called for both, by other goroutines.
func Connect(urls, credentials, name string, report func(text string)) (*Conn, error) {
	o := []nats.Option{
		nats.Name(name), nats.MaxReconnects(-1), nats.ReconnectWait(time.Second), nats.Timeout(requestTime),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				report(fmt.Sprintf("the connection to NATS is lost: %v", err))
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) { report("connected to NATS again") }),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), // those of requests are returned
	}
	if credentials != "" {
		o = append(o, nats.UserCredentials(credentials))
	}
	c, err := nats.Connect(urls, o...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	return c, nil
}

// LatestRun returns the latest run in a store and whether it has ended. Its error wraps
// [ErrNoRun] if there is none.
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
	text, err := io.ReadAll(in)
	if err = errors.Join(err, in.Close()); err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err == nil && r.SchemaVersion != 1 {
		err = fmt.Errorf("schema version %d: want 1", r.SchemaVersion)
	}
	if err == nil {
		r.number, err = strconv.Atoi(last)
	}
	if err != nil {
		return r, false, fmt.Errorf("read run %s: %w", last, err)
	}
	ended, err = s.Has(ctx, endsDir+"/"+r.name())
	return r, ended, err
}

// ErrNoRun is the error for a store without a run.
var ErrNoRun = errors.New("no coordinator has begun a run in the store")

// beginRun creates the next run in a store. A store has one batch: its error wraps a
// [batch.MismatchError] for another one.
func beginRun(ctx context.Context, s results.Store, spec batch.Spec, paths []string) (Run, error) {
	for {
		last, _, err := LatestRun(ctx, s)
		if err != nil && !errors.Is(err, ErrNoRun) {
			return last, err
		}
		if err == nil {
			if err := spec.CheckSpec(last.Spec); err != nil {
				return last, fmt.Errorf("%s: %w", s, err)
			}
		}
		next := Run{SchemaVersion: 1, Batch: last.Batch, Spec: spec, Paths: paths, number: last.number + 1}
		if next.Batch == "" {
			next.Batch = rand.Text()
		}
		text, err := json.Marshal(next)
		if err != nil {
			return next, err
		}
		if err = putBytes(ctx, s, runsDir+"/"+next.name(), text); !errors.Is(err, results.ErrExists) {
			return next, err
		}
	}
}

// endRun records that a run has ended.
func endRun(ctx context.Context, s results.Store, r Run) error {
	err := putBytes(ctx, s, endsDir+"/"+r.name(), []byte(time.Now().UTC().Format(time.RFC3339)+"\n"))
	if errors.Is(err, results.ErrExists) {
		return nil
	}
	return err
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
