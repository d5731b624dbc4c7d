package runner

import (
	"fmt"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/worker"
	"github.com/caisson-run/caisson/runner/record"
)

// recordWorker records an event of the workers that a call asks, below the call.
func (j *eventRecorder) recordWorker(call string, e worker.Event) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if started, ok := e.(worker.ToolStarted); ok {
		j.rememberCall(started.CallID, j.parentRecord(call)) // for its reports while it runs
	}
	if actor, p := NewWorkerRecord(call, e); p != nil {
		return j.putRecord(nil, j.parentRecord(call), actor, p)
	}
	return nil
}

// NewWorkerRecord returns the record of an event of the workers that a call asks, or nil
// if the event has none.
func NewWorkerRecord(call string, e worker.Event) (record.Actor, record.Payload) {
	switch e := e.(type) {
	case worker.ToolCalled:
		return record.ActorWorker, record.WorkerToolCall{
			CallID: call, Worker: e.Worker, Hop: e.Hop, Name: e.Name, Status: string(e.Status), InnerID: e.CallID, Summary: e.Summary, InputHash: e.InputHash,
		}
	case worker.InputRefused:
		return record.ActorWorker, record.WorkerInputInvalid{CallID: call, Worker: e.Worker, Hop: e.Hop, Name: e.Name, Error: e.SchemaError}
	case worker.CostWarned:
		return record.ActorSystem, record.WorkerCostWarning{CallID: call, Worker: e.Worker, CapUSD: e.CapUSD, ObservedUSD: e.ObservedUSD}
	case worker.ModelEvent:
		return newModelRecord(call, e)
	}
	return "", nil
}

// newModelRecord returns the record of an event of the loop around a worker's request, or
// nil if the event has none.
func newModelRecord(call string, e worker.ModelEvent) (record.Actor, record.Payload) {
	switch of := e.Event.(type) {
	case loop.ModelCallCompleted:
		return record.ActorWorker, record.WorkerModelCall{
			CallID: call, Worker: e.Worker, ModelCall: of.ModelCall, LatencyMS: of.LatencyMS, Usage: of.Usage, Finish: of.Finish,
		}
	case loop.ModelCallFailed:
		return record.ActorWorker, record.WorkerModelCall{
			CallID: call, Worker: e.Worker, ModelCall: of.ModelCall, Class: of.Class, Status: of.Status, Message: of.Message, ErrorID: of.ErrorID,
		}
	case loop.CanaryLeaked:
		return record.ActorSystem, record.Warning{
			CallID: call, Message: fmt.Sprintf("%s repeated the ID of a wrapper around untrusted text %d times; it is replaced", e.Worker, of.Count),
		}
	case loop.BudgetWarning:
		return record.ActorSystem, record.BudgetWarning(of)
	}
	return "", nil
}
