package server

import (
	"cmp"
	"errors"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/oklog/ulid/v2"
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
)

// Problem is an error in the format of RFC 9457. Code and Type, which contains
// it, are stable. Detail has the cause and the hint.
//
//	{"type":"urn:caisson:problem:busy","title":"Conflict","status":409,"code":"busy","detail":"turn trn_… is running. Wait for its end, or cancel it."}
type Problem struct {
	Type   string `json:"type" doc:"urn:caisson:problem: and the code"`
	Title  string `json:"title" doc:"the HTTP status in words"`
	Status int    `json:"status"`
	Code   string `json:"code" doc:"a stable word for programs" example:"busy"`
	Detail string `json:"detail" doc:"the cause, and what to do about it"`
	// Errors are the invalid parts of a request.
	Errors []Place `json:"errors,omitempty" nullable:"false"`
	// ErrorID is in the server's log, with the cause, if Detail is generic.
	ErrorID string `json:"error_id,omitempty"`
	// Resolution is the decision that stands, if an answer came too late.
	Resolution *Resolution `json:"resolution,omitempty"`
	// Conflicts are the changes that prevented an apply.
	Conflicts []Note `json:"conflicts,omitempty" nullable:"false"`

	retryAfter string
}

// Place is an invalid part of a request.
type Place struct {
	Location string `json:"location" example:"body.workspace"`
	Message  string `json:"message"`
}

func (p *Problem) Error() string { return p.Detail }

// GetStatus implements huma.StatusError.
func (p *Problem) GetStatus() int { return p.Status }

// GetHeaders implements huma.HeadersError.
func (p *Problem) GetHeaders() http.Header {
	h := http.Header{}
	if p.retryAfter != "" {
		h.Set("Retry-After", p.retryAfter)
	}
	return h
}

// ContentType implements huma.ContentTypeFilter.
func (p *Problem) ContentType(string) string { return problemType }

const problemType = "application/problem+json"

// newProblem makes a problem from its cause and hint, each a sentence without
// its full stop.
func newProblem(status int, code, cause, hint string) *Problem {
	detail := cause + "."
	if hint != "" {
		detail += " " + hint + "."
	}
	return &Problem{Type: "urn:caisson:problem:" + code, Title: http.StatusText(status), Status: status, Code: code, Detail: detail}
}

// PrepareError is an error of [Options].Prepare or [Options].OpenWorkspace for
// clients. Clients see other errors as internal, unless they are the runner's.
type PrepareError struct {
	// Code is a stable word, a key of prepareStatuses.
	Code string
	// Problem is the cause and the hint. If they are empty, the client gets
	// general ones, and the log gets Err: it may name files and variables of
	// the server's host.
	record.Problem
	Err error
}

func (e *PrepareError) Error() string {
	if e.Cause == "" && e.Err != nil {
		return e.Err.Error()
	}
	return e.Cause
}

func (e *PrepareError) Unwrap() error { return e.Err }

// prepareStatuses maps the codes of a [PrepareError] to HTTP statuses.
var prepareStatuses = map[string]int{
	"input": http.StatusUnprocessableEntity, "refused": http.StatusUnprocessableEntity,
	"workspace": http.StatusUnprocessableEntity, "workspace_configuration": http.StatusUnprocessableEntity,
	"untrusted": http.StatusForbidden, "policy": http.StatusForbidden,
	"configuration": http.StatusServiceUnavailable, "model": http.StatusServiceUnavailable,
	"sandbox": http.StatusServiceUnavailable, "records": http.StatusServiceUnavailable,

	string(runner.FaultCommand): http.StatusUnprocessableEntity, string(runner.FaultSandboxStart): http.StatusServiceUnavailable,
	string(runner.FaultCommandLost): http.StatusServiceUnavailable, string(runner.FaultReplaced): http.StatusServiceUnavailable,
	string(runner.FaultDisk): http.StatusInsufficientStorage,
}

// prepareCauses are the general causes by code.
var prepareCauses = map[string]string{
	"input": "a file that the session needs can't be used", "configuration": "the server's configuration can't be used",
	"model": "the model can't be used", "sandbox": "the sandbox can't be used", "records": "the records of a session can't be written",
	string(runner.FaultSandboxStart): "the sandbox could not start", string(runner.FaultCommandLost): "the sandbox was lost while the command ran",
	string(runner.FaultReplaced): "a fresh sandbox took the place of one that was lost, and the command did not run in it",
}

const (
	askOtherwise = "Ask for something else."
	recordsHint  = "The session's records have the details."
)

// sessionHint returns what a client can do about a session's fault.
func sessionHint(f runner.Fault) string {
	const allow = " Or start a session with a policy that allows the class of the call."
	switch f.Kind {
	case runner.FaultSandboxStart:
		if !errors.Is(f.Err, sandbox.ErrNoNamespaces) && runner.ProgramHint(f.Err) == "" {
			return "Choose another image, or ask the server's operator to check its engine or runtime."
		}
	case runner.FaultSandboxLost:
		return "Start another session; if it happens again, ask the server's operator to check the engine or runtime. " + whereChangesAre(f)
	case runner.FaultNoApprover:
		return "Answer the confirmations of the session." + allow
	case runner.FaultLateAnswer:
		return "Answer while the question waits." + allow
	case runner.FaultCancelled:
		return whereChangesAre(f)
	case runner.FaultConflicts, runner.FaultNotApplied:
		return "GET /sessions/{id}/diff shows both; POST /sessions/{id}/apply applies the rest."
	}
	return f.Hint()
}

func whereChangesAre(f runner.Fault) string {
	if f.Overlay {
		return "The workspace is unchanged; GET /sessions/{id}/diff shows the changes."
	}
	return "What was done is in the workspace."
}

// pastProblem returns the problem of an ended session. Another program may have
// recorded it, with hints for its own users.
func pastProblem(session string, end record.SessionEnded) record.Problem {
	out := record.Problem{Cause: end.Problem.Cause, Hint: recordsHint}
	f := runner.FaultOf(session, end)
	switch f.Kind {
	case "":
	case runner.FaultModel, runner.FaultModelKey, runner.FaultRecords:
		out.Hint = end.Problem.Hint // every program has the same: it names the log or the disk
	default:
		out.Hint = sessionHint(f)
	}
	return out
}

// internalProblem returns the problem for an error whose text clients must not
// see. It logs the text under the problem's ID.
func (d *diagnostics) internalProblem(what string, err error) *Problem {
	id := newErrorID()
	d.log.Error(what, zap.String("error_id", id), zap.Error(err))
	p := newProblem(http.StatusInternalServerError, "internal", "the server failed", "Its log has the cause, under "+id)
	p.ErrorID = id
	return p
}

func newErrorID() string { return "err_" + ulid.Make().String() }

func (d *diagnostics) asProblem(what string, err error) *Problem {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p
	}
	if p := d.resumeProblem(err); p != nil {
		return p
	}
	if e, ok := errors.AsType[*PrepareError](err); ok && prepareStatuses[e.Code] != 0 {
		return d.prepareProblem(what, e)
	}
	e := &PrepareError{Err: err}
	if w, ok := errors.AsType[*runner.WorkspaceError](err); ok {
		e.Code, e.Problem = "input", record.Problem{Cause: w.Error(), Hint: "Name another directory."}
	} else if errors.As(err, new(*state.DirError)) {
		e.Code = "configuration"
	} else if f, ok := errors.AsType[runner.Fault](err); ok && f.Kind == runner.FaultInvalidLimits {
		e.Code, e.Problem = "configuration", record.Problem{Cause: f.Error(), Hint: "Change the limits, or ask the server's operator."}
	} else if ok {
		e.Code = "records"
	} else {
		return d.internalProblem(what, err)
	}
	return d.prepareProblem(what, e)
}

func sessionLive() *Problem {
	return newProblem(http.StatusConflict, "live", "the session is live in this server or another process", "Send it messages if this server has it, or wait for its end")
}

// resumeProblem returns the problem of a session that can't be resumed, or nil
// for any other error.
func (d *diagnostics) resumeProblem(err error) *Problem {
	e, ok := errors.AsType[*runner.ResumeError](err)
	switch {
	case errors.Is(err, sessiondir.ErrAlive):
		return sessionLive()
	case errors.Is(err, sessiondir.ErrNoRecords):
		return newProblem(http.StatusConflict, "no_records", "the session's records are missing", "Start another session")
	case !ok:
		return nil
	case e.Reason == runner.ResumeDamaged: // its text names files of the server's host
		id := newErrorID()
		d.log.Warn("resume session", zap.String("error_id", id), zap.Error(err))
		p := newProblem(http.StatusConflict, string(e.Reason), "the records of session "+e.Session+" were changed, or are damaged", "The server's log has the place, under "+id)
		p.ErrorID = id
		return p
	}
	hint := "Start another session"
	switch e.Reason {
	case runner.ResumeNothing, runner.ResumeNoMessage:
		hint = "Send a message"
	case runner.ResumePartlyApplied:
		hint = "Apply the rest, and then resume it"
	case runner.ResumeApplying:
		hint = "Resume it when its changes are applied"
	}
	return newProblem(http.StatusConflict, string(e.Reason), e.Error(), hint)
}

// prepareProblem returns the problem for a PrepareError. It logs the error
// unless it is about the request and the client sees all of it.
func (d *diagnostics) prepareProblem(what string, e *PrepareError) *Problem {
	status, p, id := prepareStatuses[e.Code], e.Problem, ""
	if p.Cause == "" {
		p.Cause, id = cmp.Or(prepareCauses[e.Code], "the session can't be started"), newErrorID()
	}
	switch {
	case p.Hint != "":
	case status == http.StatusUnprocessableEntity && id == "":
		p.Hint = askOtherwise
	default:
		id = cmp.Or(id, newErrorID())
		p.Hint = "The server's operator finds the cause in its log, under " + id + "."
	}
	if id != "" || status != http.StatusUnprocessableEntity {
		d.log.Warn(what, zap.String("error_id", id), zap.Error(cmp.Or(e.Err, error(e))))
	}
	out := fromProblem(status, e.Code, p)
	out.ErrorID = id
	return out
}

func fromProblem(status int, code string, p record.Problem) *Problem {
	out := newProblem(status, code, "", "")
	out.Detail = strings.TrimRight(p.Cause, ". ") + ". " + p.Hint
	return out
}

// asOwnProblem turns huma's own errors into a [Problem].
func asOwnProblem(_ huma.Context, _ string, v any) (any, error) {
	e, ok := v.(*huma.ErrorModel)
	if !ok {
		return v, nil
	}
	code := map[int]string{
		http.StatusUnprocessableEntity: "invalid", http.StatusBadRequest: "malformed", http.StatusRequestEntityTooLarge: "too_large",
		http.StatusUnsupportedMediaType: "content_type", http.StatusRequestTimeout: "too_slow", http.StatusNotAcceptable: "not_acceptable",
	}[e.Status]
	if code == "" {
		return newProblem(e.Status, "internal", "the server failed", "Try again; its log may have the cause"), nil
	}
	p := newProblem(e.Status, code, "the request does not match the API", "errors lists each part; /openapi.json describes all requests")
	for _, d := range e.Errors {
		if d != nil { // d.Value is left out: it is the client's own text, and may be long
			p.Errors = append(p.Errors, Place{Location: d.Location, Message: d.Message})
		}
	}
	return p, nil
}
