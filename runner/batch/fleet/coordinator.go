package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/runner/batch/results"
)

// CoordinatorOptions configures [Coordinate].
type CoordinatorOptions struct {
	Conn  *Conn
	Store results.Store
	// Ledger gets the results, with the trials' files. It is loaded with Spec.
	Ledger *batch.Ledger
	Spec   batch.Spec
	Paths  []string
	Trials []batch.Trial
	// MaxCostMicroUSD bounds the cost of all the ledger's trials, in millionths of a
	// dollar; 0 is no bound. Each trial may cost what is left when it starts. If
	// nothing is left, the queue is emptied, and running trials are not waited for.
	MaxCostMicroUSD int64
	// Interval is the time between two looks for results; zero means two seconds. Every
	// fifth time, the queue is compared with the missing results.
	Interval time.Duration
	// AckWait replaces [AckWait] unless it is zero.
	AckWait time.Duration
	// OnResult is called for each new result, Report with faults that are retried, and
	// OnIdle once a minute while no worker takes trials. All may be nil.
	OnResult func(batch.Result)
	Report   func(text string)
	OnIdle   func()
}

// maxFailures bounds the attempts to read a damaged result, or one that can't be kept
// here.
const maxFailures = 5

// endTime bounds the attempts to end the run.
const endTime = time.Minute

var errEndTime = fmt.Errorf("the run could not be ended within %s", endTime)

// DamagedError reports stored results that can't be read. Results never change, so
// their trials have none until the objects are removed.
type DamagedError struct {
	// Objects are the objects' names. Err is the first one's error.
	Objects []string
	Err     error
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("%d results are damaged: %s: %v", len(e.Objects), strings.Join(e.Objects, ", "), e.Err)
}

func (e *DamagedError) Unwrap() error { return e.Err }

// Coordinate queues the trials without a result and collects results until all have
// one, the cost is used up, or ctx ends. Then it ends the run, so that workers stop.
// Faults of NATS and the store are retried indefinitely. If results are damaged, it
// collects all others and returns a [DamagedError].
func Coordinate(ctx context.Context, o CoordinatorOptions) (batch.Totals, error) {
	o.Interval, o.AckWait = cmp.Or(o.Interval, 2*time.Second), cmp.Or(o.AckWait, AckWait)
	o.Report = limitReports(o.Report)
	js, err := jetstream.New(o.Conn, jetstream.WithDefaultTimeout(requestTime), jetstream.WithPublishAsyncMaxPending(256), jetstream.WithPublishAsyncTimeout(requestTime))
	if err != nil {
		return batch.Totals{}, err
	}
	c := &coordinator{CoordinatorOptions: o, js: js, open: map[string]batch.Trial{}, failures: map[string]int{}, delivered: math.MaxUint64}
	for _, t := range o.Trials {
		if _, done := o.Ledger.Ending(t.Key); done {
			c.totals.Kept++
		} else {
			c.open[t.Key.Name()] = t
		}
	}
	c.cost.Store(o.Ledger.CostMicroUSD())
	if len(c.open) == 0 {
		return c.totals, nil
	}
	if c.run, err = beginRun(ctx, o.Store, Run{Spec: o.Spec, Paths: o.Paths, Buckets: bucketsOf(o.Trials), MaxCostMicroUSD: o.MaxCostMicroUSD}); err != nil {
		return c.totals, err
	}
	if o.MaxCostMicroUSD > 0 {
		answers, err := o.Conn.Subscribe(c.run.costSubject(), c.answerCost)
		if err != nil {
			return c.totals, err
		}
		defer func() { _ = answers.Unsubscribe() }() // the connection may be closed
	}
	err = c.collectAll(ctx)
	if err == nil && len(c.damaged.Objects) > 0 {
		err = &c.damaged
	}
	for _, t := range o.Trials {
		if _, left := c.open[t.Key.Name()]; left {
			c.totals.NotRun = append(c.totals.NotRun, t.Key)
		}
	}
	return c.totals, errors.Join(err, c.close(ctx))
}

type coordinator struct {
	CoordinatorOptions
	js     jetstream.JetStream
	run    Run
	totals batch.Totals
	cost   atomic.Int64 // of all tries, in millionths of a dollar
	// short is set once too little of the cost bound was left for a trial.
	short atomic.Bool
	// open are the trials without a result, by name, including those with a damaged
	// one.
	open     map[string]batch.Trial
	failures map[string]int
	damaged  DamagedError
	// consumers are the queue's. delivered is what they had delivered at the last look,
	// or the maximum before the first. idleAt is the last call of OnIdle.
	consumers []jetstream.Consumer
	delivered uint64
	idleAt    time.Time
}

// collectAll returns once no trial is open, the cost is used up or ctx has ended.
func (c *coordinator) collectAll(ctx context.Context) error {
	var fillErr error
	for round := 0; ; round++ {
		if c.costLeft() <= 0 {
			c.totals.Reached = batch.DescribeCost(c.MaxCostMicroUSD)
			return nil
		}
		if round%5 == 0 || fillErr != nil {
			if fillErr = c.fillQueue(ctx); fillErr != nil {
				reportFault(ctx, c.Report, "the queue can't be filled, which is tried again: %v", fillErr)
			}
		}
		if round%5 == 2 && c.isIdle(ctx) && time.Since(c.idleAt) >= reportAgain && c.OnIdle != nil {
			c.idleAt = time.Now()
			c.OnIdle()
		}
		if err := c.collectResults(ctx); err != nil {
			return err
		}
		if len(c.open) == len(c.damaged.Objects) {
			return nil
		}
		select {
		case <-time.After(c.Interval):
		case <-ctx.Done():
			return nil
		}
	}
}

// isIdle reports whether no worker has a trial or waits for one, and none took one
// since the last look.
func (c *coordinator) isIdle(ctx context.Context) bool {
	delivered := uint64(0)
	for _, consumer := range c.consumers {
		info, err := consumer.Info(ctx)
		if err != nil || info.NumWaiting > 0 || info.NumAckPending > 0 {
			return false
		}
		delivered += info.Delivered.Consumer
	}
	before := c.delivered
	c.delivered = delivered
	return len(c.consumers) > 0 && delivered == before
}

// costLeft returns what a trial that starts now may cost, in millionths of a dollar.
func (c *coordinator) costLeft() int64 {
	switch {
	case c.MaxCostMicroUSD == 0:
		return math.MaxInt64
	case c.short.Load():
		return 0
	}
	return c.MaxCostMicroUSD - c.cost.Load()
}

// answerCost tells a worker what trials may still cost. The request is empty, or
// reports the cost of a trial without a result.
func (c *coordinator) answerCost(m *nats.Msg) {
	var dropped droppedTrial
	if len(m.Data) > 0 && json.Unmarshal(m.Data, &dropped) == nil && dropped.MicroUSD >= 0 {
		if err := c.Ledger.AddCost(dropped.MicroUSD); err != nil {
			c.Report(err.Error())
		}
		c.cost.Add(dropped.MicroUSD)
		c.short.Store(c.short.Load() || dropped.Short)
	}
	_ = m.Respond(strconv.AppendInt(nil, c.costLeft(), 10)) // a worker asks again
}

// fillQueue queues each open trial that neither has a result nor is queued. It reads
// the queue first: a trial that leaves it later has its result by then.
func (c *coordinator) fillQueue(ctx context.Context) error {
	stream, err := c.openStream(ctx) // without a deadline, so that each request has its own
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
		delete(missing, strings.TrimSuffix(n, suffix))
	}
	var futures []jetstream.PubAckFuture
	for _, t := range c.Trials { // in order
		if _, ok := missing[t.Key.Name()]; !ok || info.State.Subjects[c.run.subject(t.Key)] > 0 {
			continue
		}
		text, err := json.Marshal(t.Key)
		if err != nil {
			return err
		}
		f, err := c.js.PublishAsync(c.run.subject(t.Key), text)
		if err != nil {
			return err
		}
		futures = append(futures, f)
	}
	return waitPublished(ctx, futures)
}

// storeFailed is the error code for a subject's second message.
const storeFailed jetstream.ErrorCode = 10077

// waitPublished waits until messages are queued. A message that was already queued is
// no error.
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

// openStream returns the queue, with at most one message per trial. It makes the queue
// if it is missing, on three servers if possible.
func (c *coordinator) openStream(ctx context.Context) (jetstream.Stream, error) {
	stream, err := c.js.Stream(ctx, c.run.stream())
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		stream, err = c.createStream(ctx)
	}
	if err != nil {
		return nil, err
	}
	c.consumers = nil
	for _, b := range c.run.list() {
		consumer, err := stream.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
			Durable: consumerName(b), FilterSubject: fmt.Sprintf("caisson.%s.%d.*", c.run.Batch, b), AckPolicy: jetstream.AckExplicitPolicy,
			AckWait: c.AckWait, MaxAckPending: maxAckPending, MaxDeliver: -1,
		})
		if err != nil {
			return nil, err
		}
		c.consumers = append(c.consumers, consumer)
	}
	return stream, nil
}

// Error codes for more replicas than servers.
const (
	noPeers              jetstream.ErrorCode = 10005
	insufficientServers  jetstream.ErrorCode = 10023
	replicasNotSupported jetstream.ErrorCode = 10074
)

func (c *coordinator) createStream(ctx context.Context) (jetstream.Stream, error) {
	config := jetstream.StreamConfig{
		Name: c.run.stream(), Subjects: []string{"caisson." + c.run.Batch + ".*.*"}, Description: "trials of a batch of Caisson",
		Retention: jetstream.WorkQueuePolicy, Storage: jetstream.FileStorage, Replicas: 3,
		MaxMsgsPerSubject: 1, MaxMsgSize: maxMessage, Discard: jetstream.DiscardNew, DiscardNewPerSubject: true,
	}
	stream, err := c.js.CreateStream(ctx, config)
	if hasCode(err, noPeers, insufficientServers, replicasNotSupported) {
		config.Replicas = 1
		stream, err = c.js.CreateStream(ctx, config)
	}
	return stream, err
}

// collectResults brings the store's new results to the ledger. It fails if the ledger
// does, or if a result can't be kept here.
func (c *coordinator) collectResults(ctx context.Context) error {
	names, err := c.Store.List(ctx, trialsDir)
	if err != nil {
		reportFault(ctx, c.Report, "results can't be listed, which is tried again: %v", err)
		return nil
	}
	for _, n := range names {
		name := strings.TrimSuffix(n, suffix)
		t, ok := c.open[name]
		if !ok || slices.Contains(c.damaged.Objects, objectOf(t.Key)) {
			continue
		}
		r, err := c.collectResult(ctx, t)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			if err := c.noteFailure(t.Key, err); err != nil {
				return err
			}
			continue
		}
		if err := c.Ledger.Finish(r); err != nil {
			return err
		}
		delete(c.open, name)
		c.totals.Ran++
		c.cost.Add(r.Ending().CostMicroUSD)
		if c.OnResult != nil {
			c.OnResult(r)
		}
	}
	return nil
}

// noteFailure decides how to go on after a result was not collected. Faults of the
// store don't count. Damaged results are left out in the end. Other errors come from
// the local disk and are returned.
func (c *coordinator) noteFailure(k batch.Key, err error) error {
	if _, ok := errors.AsType[*storeError](err); !ok {
		c.failures[k.Name()]++
	}
	_, damaged := errors.AsType[*damageError](err)
	switch {
	case c.failures[k.Name()] < maxFailures:
		c.Report(fmt.Sprintf("%s can't be read, which is tried again: %v", objectOf(k), err))
	case damaged:
		c.Report(fmt.Sprintf("%s is damaged, and left out: %v", objectOf(k), err))
		c.damaged.Objects = append(c.damaged.Objects, objectOf(k))
		c.damaged.Err = cmp.Or(c.damaged.Err, err)
	default:
		return fmt.Errorf("%s in %s: %w", objectOf(k), c.Store, err)
	}
	return nil
}

func (c *coordinator) collectResult(ctx context.Context, t batch.Trial) (r batch.Result, err error) {
	dir, err := c.Ledger.Begin(t.Key)
	if err != nil {
		return r, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Ledger.Drop(t.Key, 0))
		}
	}()
	ctx, cancel := context.WithTimeoutCause(ctx, transferTime, errTransferTime)
	defer cancel()
	in, err := c.Store.Get(ctx, objectOf(t.Key))
	if err != nil {
		return r, &storeError{err}
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	if r, err = readTrial(in, dir, bounds); err != nil {
		return r, err
	}
	if r.Key != t.Key || r.Checksum != t.Definition.Checksum {
		return r, &damageError{fmt.Errorf("the result is of %s with checksum %s: want %s with %s", r.Key.Describe(), r.Checksum, t.Key.Describe(), t.Definition.Checksum)}
	}
	return r, nil
}

// close ends the run and removes the queue, even after ctx has ended.
func (c *coordinator) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), endTime, errEndTime)
	defer cancel()
	err := endRun(ctx, c.Store, c.run)
	if removeErr := c.js.DeleteStream(ctx, c.run.stream()); removeErr != nil && !errors.Is(removeErr, jetstream.ErrStreamNotFound) {
		c.Report(fmt.Sprintf("the queue %s is not removed: %v", c.run.stream(), removeErr))
	}
	return err
}
