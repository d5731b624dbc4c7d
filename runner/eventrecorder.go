package runner

import (
	"cmp"
	"fmt"
	"sync"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/worker"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/dispatch"
)

// eventRecorder turns events into records and links each to the record that caused it. It
// is safe for concurrent use: the dispatcher, the loop and the sandbox report from their own
// goroutines.
type eventRecorder struct {
	rec  *record.Recorder
	live func(Delta)
	// cancelled returns the record of a cancelled turn. client is the label of the user who
	// started the turn, and traceparent that user's span.
	cancelled           func() record.TurnCancelled
	client, traceparent string
	caller              record.Actor // who makes the calls of the turn
	// outputs maps the ids of running calls to their ToolCall.Output.
	outputs sync.Map

	mu      sync.Mutex
	created string // record ids; "" if not written yet
	turn    string
	turnRec string
	asked   string
	answer  string
	calls   map[string]string
	// recent are the keys of calls, oldest first.
	recent []string
	tally  tally
	// attested reports that sandbox.started is written; waiting are calls that hold a slot
	// and wait for it.
	attested bool
	waiting  []dispatch.Called
	// direct are the tools that run in this process, so that they can act before a sandbox
	// runs. It is set before the first call.
	direct map[tools.Name]bool
}

type tally struct {
	modelCalls, toolCalls int
	denials               []record.Denial
	modelFailure          record.ModelCallFailed
}

func newEventRecorder(rec *record.Recorder, live func(Delta)) *eventRecorder {
	if live == nil {
		live = func(Delta) {}
	}
	return &eventRecorder{rec: rec, live: live, calls: map[string]string{}, caller: record.ActorAgent, cancelled: func() record.TurnCancelled { return cancellationRecord(nil) }}
}

// syncAfter calls do with mu held, and syncs to disk if due. It releases mu before that, so
// that others go on and share the sync.
func (j *eventRecorder) syncAfter(do func() (due bool, err error)) error {
	j.mu.Lock()
	due, err := do()
	j.mu.Unlock()
	if err == nil && due {
		err = j.rec.Sync()
	}
	return err
}

// beginTurn sets who started the next turn and in which span, who makes its calls, and how
// its cancellation is recorded.
func (j *eventRecorder) beginTurn(client, traceparent string, caller record.Actor, cancelled func() record.TurnCancelled) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.client, j.traceparent, j.caller, j.cancelled = client, traceparent, caller, cancelled
}

// writeRecord writes a record of the session itself. After sandbox.started it also writes
// the calls that waited for it.
func (j *eventRecorder) writeRecord(p record.Payload) error {
	return j.syncAfter(func() (due bool, _ error) {
		id, err := j.write(j.created, record.ActorSystem, p)
		if err != nil {
			return false, err
		}
		if j.created == "" {
			j.created = id
		}
		if p.Kind() == record.KindSandboxStarted {
			j.attested = true
			return j.recordWaiting("")
		}
		return false, nil
	})
}

// write writes a record and returns its id. The caller holds mu.
func (j *eventRecorder) write(parent string, actor record.Actor, p record.Payload) (id string, err error) {
	return j.rec.Write(record.Entry{Turn: j.turn, Parent: parent, Actor: actor, Payload: p})
}

// recordWarning records a warning. If it can't be recorded, the next record ends the
// session.
func (j *eventRecorder) recordWarning(message string) {
	_ = j.writeRecord(record.Warning{Message: message})
}

func (j *eventRecorder) recordDenied(p record.NetworkDenied) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	// The call is running, though the sandbox that others wait for may not be.
	if _, err := j.recordWaiting(p.CallID); err != nil {
		return err
	}
	return j.putRecord(nil, j.parentRecord(p.CallID), record.ActorTool, p)
}

// recordBelow writes a record of a call, below it if it is known. With sync, the record is on
// disk when it returns.
func (j *eventRecorder) recordBelow(call string, p record.Payload, sync bool) error {
	return j.syncAfter(func() (bool, error) {
		return sync, j.putRecord(nil, j.parentRecord(call), record.ActorTool, p)
	})
}

// recordSaid records a message of a conversation that is not the session's own.
func (j *eventRecorder) recordSaid(actor record.Actor, m record.Message) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.putRecord(nil, j.created, actor, m)
}

func (j *eventRecorder) recordBackground(p record.BackgroundEnded) error {
	return j.recordBelow(p.CallID, p, false)
}

// recordUser records a user's action below the record parent, or below the session's first
// record if parent is "", and returns the new record's id.
func (j *eventRecorder) recordUser(p record.Payload, parent string) (string, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.write(cmp.Or(parent, j.created), record.ActorUser, p)
}

// recordWaiting records that a call has begun that waited for the sandbox, or all such calls
// for "". The caller holds mu.
func (j *eventRecorder) recordWaiting(call string) (due bool, _ error) {
	var left []dispatch.Called
	for _, e := range j.waiting {
		if call != "" && e.CallID != call {
			left = append(left, e)
			continue
		}
		d, err := j.recordStart(e)
		if err != nil {
			return due, err
		}
		due = due || d
	}
	j.waiting = left
	return due, nil
}

// recordStart records that a call begins. Unless its class is none or read, the record must be on
// disk before the call runs. The caller holds mu.
func (j *eventRecorder) recordStart(e dispatch.Called) (due bool, _ error) {
	err := j.putCall(e.CallID, j.caller, record.ToolCalled(e))
	return e.Class != tools.ClassNone && e.Class != tools.ClassRead, err
}

func (j *eventRecorder) currentTally() tally {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.tally
}

func (j *eventRecorder) loopEvent(e loop.Event) error {
	if d, ok := e.(loop.TextDelta); ok {
		j.live(Delta{Stream: "answer", Text: d.Text})
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	switch e := e.(type) {
	case loop.TurnStarted:
		j.turn, j.tally.modelCalls, j.tally.toolCalls = e.Turn, 0, 0
		err := j.putRecord(&j.turnRec, j.created, record.ActorUser, record.TurnStarted{Client: j.client, Budget: record.NewBudget(e.Budget), Traceparent: j.traceparent})
		j.answer = j.turnRec // until the model answers
		return err
	case loop.MessageAdded:
		return j.recordMessage(e.Message)
	case loop.ModelCallStarted:
		j.tally.modelCalls++
		return j.putRecord(&j.asked, j.turnRec, record.ActorAgent, record.ModelCallStarted(e))
	case loop.ModelCallCompleted:
		return j.putRecord(&j.answer, j.asked, record.ActorAgent, record.ModelCallCompleted(e))
	case loop.ModelCallFailed:
		j.tally.modelFailure = record.ModelCallFailed(e)
		return j.putRecord(&j.answer, j.asked, record.ActorAgent, j.tally.modelFailure)
	case loop.ProfileChanged:
		return j.putRecord(nil, j.turnRec, record.ActorSystem, record.Warning{
			Message: fmt.Sprintf("the model %s failed (%s); %s is asked instead", e.From, e.Class, e.To),
		})
	case loop.CanaryLeaked:
		return j.putRecord(nil, j.answer, record.ActorSystem, record.Warning{
			Message: fmt.Sprintf("the model repeated the ID of a wrapper around untrusted text, or the canary of its instructions, %d times; it is replaced", e.Count),
		})
	case loop.CallRefused:
		return j.recordFailed(record.ToolFailed{CallID: e.CallID, Name: e.Name, Class: e.Class, Reason: e.Reason, Message: e.Message, FilesModified: []string{}})
	case loop.BudgetWarning:
		return j.putRecord(nil, j.turnRec, record.ActorSystem, record.BudgetWarning(e))
	case loop.ContextShortened:
		return j.putRecord(nil, j.turnRec, record.ActorSystem, record.ContextShortened(e))
	case loop.ContextCompacted:
		return j.putRecord(nil, j.answer, record.ActorSystem, record.ContextCompacted(e))
	case loop.ContextCompactionFailed:
		return j.putRecord(nil, j.answer, record.ActorSystem, record.ContextCompactionFailed(e))
	case loop.TurnEnded:
		return j.turnEnded(e)
	}
	return nil
}

func (j *eventRecorder) turnEnded(e loop.TurnEnded) error {
	defer func() { j.turn = "" }()
	t := j.tally
	if e.Reason == loop.StopCancelled {
		p := j.cancelled()
		p.ModelCalls, p.ToolCalls, p.Usage, p.WallMS = t.modelCalls, t.toolCalls, e.Usage, e.Wall.Milliseconds()
		return j.putRecord(nil, j.turnRec, record.ActorSystem, p)
	}
	return j.putRecord(nil, j.turnRec, record.ActorSystem, record.TurnCompleted{
		Reason: e.Reason, Truncated: e.Truncated, Limit: (*record.Limit)(e.Limit), ModelCalls: t.modelCalls, ToolCalls: t.toolCalls,
		Usage: e.Usage, WallMS: e.Wall.Milliseconds(),
	})
}

func (j *eventRecorder) recordMessage(m loop.Message) error {
	parent, actor, client := j.turnRec, record.ActorSystem, ""
	switch m.Role {
	case loop.RoleUser:
		actor, client = record.ActorUser, j.client
	case loop.RoleAssistant:
		parent, actor = j.answer, j.caller
	case loop.RoleTool:
		actor = record.ActorTool
		for _, b := range m.Blocks {
			if b.ToolResult != nil && j.calls[b.ToolResult.ToolUseID] != "" {
				parent = j.calls[b.ToolResult.ToolUseID]
			}
		}
	}
	return j.putRecord(nil, parent, actor, record.Message{Role: m.Role, Blocks: m.Blocks, Client: client})
}

// putRecord writes a record and, if keep is not nil, stores its id in *keep. The caller
// holds mu.
func (j *eventRecorder) putRecord(keep *string, parent string, actor record.Actor, p record.Payload) error {
	id, err := j.write(parent, actor, p)
	if err == nil && keep != nil {
		*keep = id
	}
	return err
}

// putCall writes a record of a call, below the call's previous record, or else below the
// model's answer. The caller holds mu.
func (j *eventRecorder) putCall(call string, actor record.Actor, p record.Payload) error {
	id, err := j.write(j.parentRecord(call), actor, p)
	if err == nil {
		j.rememberCall(call, id)
	}
	return err
}

// maxRemembered bounds the calls whose last record is remembered. It is more than one round
// has, with room for commands that go on in the background.
const maxRemembered = 4096

// rememberCall notes the last record of a call, and forgets the oldest call if there are too many.
func (j *eventRecorder) rememberCall(call, id string) {
	if _, ok := j.calls[call]; !ok {
		if len(j.recent) == maxRemembered {
			delete(j.calls, j.recent[0])
			j.recent = j.recent[1:]
		}
		j.recent = append(j.recent, call)
	}
	j.calls[call] = id
}

// toolEvent records an event of the dispatcher. A call that needs the sandbox before it runs
// is recorded after sandbox.started, or with its own end if that comes first.
func (j *eventRecorder) toolEvent(e dispatch.Event) error {
	if d, ok := e.(dispatch.OutputDelta); ok {
		j.live(Delta{CallID: d.CallID, Stream: d.Stream, Text: d.Text})
		if show, ok := j.outputs.Load(d.CallID); ok {
			show.(func(stream, text string))(d.Stream, d.Text)
		}
		return nil
	}
	return j.syncAfter(func() (due bool, err error) {
		switch e := e.(type) {
		case dispatch.Called:
			return j.recordCall(e)
		case dispatch.Completed:
			_, err = j.recordWaiting(e.CallID)
		case dispatch.Failed:
			_, err = j.recordWaiting(e.CallID)
		}
		if err != nil {
			return due, err
		}
		return isClientAnswer(e), j.toolRecord(e)
	})
}

// recordCall records that a call holds its slot, or keeps the event until the sandbox runs.
// The caller holds mu.
func (j *eventRecorder) recordCall(e dispatch.Called) (due bool, _ error) {
	j.tally.toolCalls++
	if (e.Class == tools.ClassWrite || e.Class == tools.ClassExecute) && !j.direct[e.Name] && !j.attested {
		j.waiting = append(j.waiting, e)
		return false, nil
	}
	return j.recordStart(e)
}

// isClientAnswer reports whether an event is a client's answer, which must be on disk before
// the client gets the outcome.
func isClientAnswer(e dispatch.Event) bool {
	switch e := e.(type) {
	case dispatch.ConfirmationResolved:
		return e.By == "user"
	case dispatch.ConfirmationAttempted:
		return true
	}
	return false
}

// toolRecord records one event. The caller holds mu.
func (j *eventRecorder) toolRecord(e dispatch.Event) error {
	switch e := e.(type) {
	case dispatch.Completed:
		return j.putCall(e.CallID, record.ActorTool, record.ToolCompleted(e))
	case dispatch.Failed:
		return j.recordFailed(record.ToolFailed(e))
	case dispatch.InputInvalid:
		return j.putCall(e.CallID, record.ActorTool, record.ToolInputInvalid(e))
	case dispatch.ConfirmationRequested:
		return j.putCall(e.Confirmation.CallID, record.ActorSystem, newConfirmationRequested(e.Confirmation))
	case dispatch.ConfirmationResolved:
		actor := record.ActorSystem
		if e.By == "user" {
			actor = record.ActorUser
		}
		return j.putCall(e.CallID, actor, record.ConfirmationResolved(e.Resolution))
	case dispatch.ConfirmationAttempted:
		return j.putRecord(nil, j.parentRecord(e.CallID), record.ActorUser, record.ConfirmationAttempted(e.Attempt))
	case dispatch.Warning:
		return j.putRecord(nil, j.parentRecord(e.CallID), record.ActorSystem, record.Warning{CallID: e.CallID, Message: e.Message})
	}
	return nil
}

// parentRecord returns the last record of a call, or the model's answer that made it.
func (j *eventRecorder) parentRecord(call string) string {
	return cmp.Or(j.calls[call], j.answer)
}

// recordFailed records a failed call, and keeps it for the report if it was refused.
func (j *eventRecorder) recordFailed(e record.ToolFailed) error {
	switch e.Class {
	case tools.ErrorPermissionDenied, tools.ErrorUserDenied, tools.ErrorConfirmationTimeout:
		j.tally.denials = append(j.tally.denials, record.Denial{CallID: e.CallID, Name: e.Name, Class: e.Class, Reason: e.Reason})
	}
	return j.putCall(e.CallID, record.ActorTool, e)
}

const maxRecordedDiff = 64 << 10

func newConfirmationRequested(c approval.Confirmation) record.ConfirmationRequested {
	p := record.ConfirmationRequested(c.Question)
	if c.Class == tools.ClassExecute {
		p.CommandLine = &c.Summary
	}
	p.Projected, p.Diff = record.NonNil(c.Projected), tools.Elide(c.Diff, maxRecordedDiff)
	p.ExpiresAt = c.Expires.UTC().Format(record.TimeLayout)
	return p
}

// recordWorker records an event of a call's workers, below the call.
func (j *eventRecorder) recordWorker(call string, e worker.Event) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if started, ok := e.(worker.ToolStarted); ok {
		j.rememberCall(started.CallID, j.parentRecord(call)) // its reports while it runs belong here
	}
	if actor, p := NewWorkerRecord(call, e); p != nil {
		return j.putRecord(nil, j.parentRecord(call), actor, p)
	}
	return nil
}

// NewWorkerRecord returns the record for an event of a call's workers, or nil if the event
// has none.
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

func newModelRecord(call string, e worker.ModelEvent) (record.Actor, record.Payload) {
	switch of := e.Event.(type) {
	case loop.ModelCallCompleted:
		return record.ActorWorker, record.WorkerModelCall{
			CallID: call, Worker: e.Worker, EndedModelCall: record.EndedModelCall{ModelCall: of.ModelCall, LatencyMS: of.LatencyMS, Usage: of.Usage, Finish: of.Finish},
		}
	case loop.ModelCallFailed:
		return record.ActorWorker, record.WorkerModelCall{
			CallID: call, Worker: e.Worker,
			EndedModelCall: record.EndedModelCall{ModelCall: of.ModelCall, Class: of.Class, Status: of.Status, Message: of.Message, ErrorID: of.ErrorID},
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
