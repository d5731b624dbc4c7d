package fleet

import (
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/runner/batch/results"
	"github.com/caisson-run/caisson/sandbox/guest/archive"
)

// CoordinatorOptions configures [Coordinate].
type CoordinatorOptions struct {
	Conn  *Conn
	Store results.Store
	// Ledger gets the results, with the files of the trials. It is loaded with Spec.
	Ledger *batch.Ledger
	Spec   batch.Spec
	// Paths are where the tasks are.
	Paths  []string
	Trials []batch.Trial
	// MaxCostMicroUSD bounds the cost of all trials of the ledger: the queue is emptied
	// when it is used up, and trials that run then are not waited for. 0 is no bound.
	MaxCostMicroUSD int64
	// Interval is the time between two looks for results; zero is two seconds. The queue is
	// compared with what has no result every fifth time.
	Interval time.Duration
	// AckWait replaces [AckWait] unless it is zero.
	AckWait time.Duration
	// OnResult is called for each result that arrives, and Report with what went wrong and
	// is tried again. Both may be nil.
	OnResult func(batch.Result)
	Report   func(text string)
}

// maxFailures is how often one result can't be read in succession before the run ends.
const maxFailures = 5

// Coordinate queues the trials that have no result and collects results until all have one,
// the cost is used up, or ctx ends; then it ends the run, so that workers stop. Faults of
// NATS and of the store are tried again for as long as it takes.
func Coordinate(ctx context.Context, o CoordinatorOptions) (batch.Totals, error) {
	o.Interval, o.AckWait = cmp.Or(o.Interval, 2*time.Second), cmp.Or(o.AckWait, AckWait)
	if o.Report == nil {
		o.Report = func(string) {}
	}
	js, err := jetstream.New(o.Conn, jetstream.WithPublishAsyncMaxPending(256))
	if err != nil {
		return batch.Totals{}, err
	}
	c := &coordinator{CoordinatorOptions: o, js: js, open: map[string]batch.Trial{}, failures: map[string]int{}}
	for _, t := range o.Trials {
		if _, done := o.Ledger.Ending(t.Key); done {
			c.totals.Kept++
		} else {
			c.open[t.Key.Name()] = t
		}
	}
	c.cost = o.Ledger.CostMicroUSD()
	if len(c.open) == 0 {
		return c.totals, nil
	}
	if c.run, err = beginRun(ctx, o.Store, o.Spec, o.Paths); err != nil {
		return c.totals, err
	}
	err = c.collectAll(ctx)
	for _, t := range o.Trials {
		if _, left := c.open[t.Key.Name()]; left {
			c.totals.NotRun = append(c.totals.NotRun, t.Key)
		}
	}
	return c.totals, errors.Join(err, c.close(ctx))
}

// coordinator is one run of a coordinator.
type coordinator struct {
	CoordinatorOptions
	js     jetstream.JetStream
	run    Run
	totals batch.Totals
	cost   int64
	// open are the trials without a result, by their names.
	open     map[string]batch.Trial
	failures map[string]int
}

// collectAll returns when no trial is open, the cost is used up or ctx has ended.
func (c *coordinator) collectAll(ctx context.Context) error {
	for round := 0; ; round++ {
		if c.MaxCostMicroUSD > 0 && c.cost >= c.MaxCostMicroUSD {
			c.totals.CostReached = true
			return nil
		}
		if round%5 == 0 {
			if err := c.fillQueue(ctx); err != nil && ctx.Err() == nil {
				c.Report(fmt.Sprintf("the queue can't be filled, which is tried again: %v", err))
			}
		}
		if err := c.collectResults(ctx); err != nil {
			return err
		}
		if len(c.open) == 0 {
			return nil
		}
		select {
		case <-time.After(c.Interval):
		case <-ctx.Done():
			return nil
		}
	}
}

// fillQueue queues each open trial that has no result and is not in the queue. The queue is
// read first: a trial that leaves it later has its result by then.
func (c *coordinator) fillQueue(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("the queue was not filled within 2 minutes"))
	defer cancel()
	stream, err := c.openStream(ctx)
	if err != nil {
		return err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter("caisson."+c.run.Batch+".>"))
	if err != nil {
		return err
	}
	names, err := c.Store.List(ctx, trialsDir)
	if err != nil {
		return err
	}
	missing := maps.Clone(c.open)
	for _, n := range names {
		name, _ := trialName(n)
		delete(missing, name)
	}
	var futures []jetstream.PubAckFuture
	for _, t := range c.Trials { // in their order
		if _, ok := missing[t.Key.Name()]; !ok || info.State.Subjects[c.run.subject(t)] > 0 {
			continue
		}
		text, err := json.Marshal(t.Key)
		if err != nil {
			return err
		}
		f, err := c.js.PublishAsync(c.run.subject(t), text)
		if err != nil {
			return err
		}
		futures = append(futures, f)
	}
	return waitPublished(ctx, futures)
}

// storeFailed is the code of the error for a second message of a subject.
const storeFailed jetstream.ErrorCode = 10077

// waitPublished waits until messages are in the queue. One that is there already is no error.
func waitPublished(ctx context.Context, futures []jetstream.PubAckFuture) error {
	for _, f := range futures {
		select {
		case <-f.Ok():
		case err := <-f.Err():
			if !hasCode(err, storeFailed) {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// openStream returns the queue, which is made if it is missing: on three servers if there
// are so many, with one message at most for each trial.
func (c *coordinator) openStream(ctx context.Context) (jetstream.Stream, error) {
	stream, err := c.js.Stream(ctx, c.run.stream())
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		stream, err = c.createStream(ctx)
	}
	if err != nil {
		return nil, err
	}
	buckets := map[int]bool{}
	for _, t := range c.Trials {
		buckets[bucketOf(t)] = true
	}
	for _, b := range slices.Sorted(maps.Keys(buckets)) {
		_, err := stream.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
			Durable: consumerName(b), FilterSubject: fmt.Sprintf("caisson.%s.%d.*", c.run.Batch, b), AckPolicy: jetstream.AckExplicitPolicy,
			AckWait: c.AckWait, MaxAckPending: maxAckPending, MaxDeliver: -1,
		})
		if err != nil {
			return nil, err
		}
	}
	return stream, nil
}

// The codes of the errors for more replicas than a cluster has servers for.
const (
	noPeers              jetstream.ErrorCode = 10005
	insufficientServers  jetstream.ErrorCode = 10023
	replicasNotSupported jetstream.ErrorCode = 10074
)

func (c *coordinator) createStream(ctx context.Context) (jetstream.Stream, error) {
	config := jetstream.StreamConfig{
		Name: c.run.stream(), Subjects: []string{"caisson." + c.run.Batch + ".*.*"}, Description: "trials of a batch of Caisson",
		Retention: jetstream.WorkQueuePolicy, Storage: jetstream.FileStorage, Replicas: 3,
		MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, DiscardNewPerSubject: true,
	}
	stream, err := c.js.CreateStream(ctx, config)
	if hasCode(err, noPeers, insufficientServers, replicasNotSupported) {
		config.Replicas = 1
		stream, err = c.js.CreateStream(ctx, config)
	}
	return stream, err
}

// collectResults brings results that are new in the store to the ledger. The error is that
// of the ledger, or of a result that is damaged.
func (c *coordinator) collectResults(ctx context.Context) error {
	names, err := c.Store.List(ctx, trialsDir)
	if err != nil {
		if ctx.Err() == nil {
			c.Report(fmt.Sprintf("results can't be listed, which is tried again: %v", err))
		}
		return nil
	}
	for _, n := range names {
		name, _ := trialName(n)
		t, ok := c.open[name]
		if !ok {
			continue
		}
		r, err := c.collectResult(ctx, t)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			if c.failures[name]++; c.failures[name] >= maxFailures {
				return fmt.Errorf("%s in %s: %w", objectOf(t.Key), c.Store, err)
			}
			c.Report(fmt.Sprintf("%s can't be read, which is tried again: %v", objectOf(t.Key), err))
			continue
		}
		if err := c.Ledger.Finish(r); err != nil {
			return err
		}
		delete(c.open, name)
		c.totals.Ran++
		c.cost += r.Ending().CostMicroUSD
		if c.OnResult != nil {
			c.OnResult(r)
		}
	}
	return nil
}

// collectResult unpacks the files of a trial and returns its result.
func (c *coordinator) collectResult(ctx context.Context, t batch.Trial) (r batch.Result, err error) {
	dir, err := c.Ledger.Begin(t.Key)
	if err != nil {
		return r, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Ledger.Drop(t.Key))
		}
	}()
	in, err := c.Store.Get(ctx, objectOf(t.Key))
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	z, err := gzip.NewReader(in)
	if err != nil {
		return r, err
	}
	if err := archive.Unpack(z, dir, archive.Bounds{}); err != nil {
		return r, err
	}
	if _, err := io.Copy(io.Discard, z); err != nil { // the checksum of gzip is at the end
		return r, err
	}
	if r, err = batch.ReadResult(dir); err != nil {
		return r, err
	}
	if r.Key != t.Key || r.Checksum != t.Definition.Checksum {
		return r, fmt.Errorf("the result is of %s with checksum %s: want %s with %s", r.Key.Describe(), r.Checksum, t.Key.Describe(), t.Definition.Checksum)
	}
	return r, nil
}

// close ends the run and removes the queue, also after ctx has ended.
func (c *coordinator) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), requestTime, errRequestTime)
	defer cancel()
	err := endRun(ctx, c.Store, c.run)
	if removeErr := c.js.DeleteStream(ctx, c.run.stream()); removeErr != nil && !errors.Is(removeErr, jetstream.ErrStreamNotFound) {
		c.Report(fmt.Sprintf("the queue %s is not removed: %v", c.run.stream(), removeErr))
	}
	return err
}
