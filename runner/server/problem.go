package server

import (
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"
	"github.com/oklog/ulid/v2"
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
)

// Problem is an error in the format of RFC 9457. Code, and Type, which is made
// from it, are stable; Detail has the cause and the hint.
//
//	{"type":"urn:caisson:problem:busy","title":"Conflict","status":409,"code":"busy","detail":"turn trn_… runs. Wait for its end, or cancel it."}
type Problem struct {
	Type   string `json:"type" doc:"urn:caisson:problem: and the code"`
	Title  string `json:"title" doc:"the HTTP status in words"`
	Status int    `json:"status"`
	Code   string `json:"code" doc:"a stable word for programs" example:"busy"`
	Detail string `json:"detail" doc:"the cause, and what to do about it"`
	// Errors are the invalid places of a request.
	Errors []Place `json:"errors,omitempty" nullable:"false"`
	// ErrorID names the entry of the server's log where Detail is generic.
	ErrorID string `json:"error_id,omitempty"`
	// Resolution is the decision that stands, if an answer came too late.
	Resolution *Resolution `json:"resolution,omitempty"`
	// Conflicts are the changes that prevented an apply.
	Conflicts []Note `json:"conflicts,omitempty" nullable:"false"`

	retryAfter string
}

// Place describes the error in one part of a request.
type Place struct {
	Location string `json:"location" example:"body.workspace"`
	Message  string `json:"message"`
}

// Error returns the detail.
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

// newProblem makes a problem from its cause and hint, each a sentence without its
// full stop.
func newProblem(status int, code, cause, hint string) *Problem {
	detail := cause + "."
	if hint != "" {
		detail += " " + hint + "."
	}
	return &Problem{Type: "urn:caisson:problem:" + code, Title: http.StatusText(status), Status: status, Code: code, Detail: detail}
}

// RequestError is a request that [Options].Prepare refuses: the client's own
// mistake, as opposed to one of the machine or its configuration.
type RequestError struct {
	// Code is a stable word, Problem the cause and hint.
	Code string
	record.Problem
	Err error
}

// Error returns the cause and the hint.
func (e *RequestError) Error() string { return e.Cause + ". " + e.Hint }

// Unwrap returns the cause.
func (e *RequestError) Unwrap() error { return e.Err }

// Words of a command line, which a client of the API has no use for: flags, and
// commands of the program.
var (
	flagWords = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(^|[\s("'])--([a-z][a-z-]*)`)
	})
	commandWords = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`\b[Cc]aisson (--)?[a-z]`)
	})
	clauseEnds = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`[.;](\s+|$)`)
	})
)

// clientProblem returns a problem in words for a client of the API. Flags in the
// cause lose their dashes, which makes most of them keys of a request, and a hint
// keeps what doesn't speak of a command line; fallback takes its place where
// nothing is left.
func clientProblem(p record.Problem, fallback string) record.Problem {
	out := record.Problem{Cause: clientText(p.Cause)}
	var kept []string
	for _, clause := range clauseEnds().Split(p.Hint, -1) {
		if clause = strings.TrimSpace(clause); clause != "" && !flagWords().MatchString(clause) && !commandWords().MatchString(clause) {
			kept = append(kept, strings.ToUpper(clause[:1])+clause[1:]+".")
		}
	}
	out.Hint = strings.Join(kept, " ")
	if len(kept) == 0 {
		out.Hint = fallback
	}
	return out
}

// clientText returns a text without the dashes of flags.
func clientText(text string) string { return flagWords().ReplaceAllString(text, "$1$2") }

// speakToClients rewrites what the records of a session will contain for people,
// for clients of the API.
func speakToClients(o *runner.Options) {
	o.Phrase = func(p record.Problem) record.Problem { return clientProblem(p, recordsHint) }
	o.Choice.Why = clientText(o.Choice.Why)
	o.Warnings, o.Ignored = slices.Clone(o.Warnings), slices.Clone(o.Ignored)
	for i := range o.Warnings {
		o.Warnings[i] = clientText(o.Warnings[i])
	}
	for i := range o.Ignored {
		o.Ignored[i].Why = clientText(o.Ignored[i].Why)
	}
}

// Hints of errors that name none for a client.
const (
	askOtherwise = "Ask for something else."
	operatorHint = "The server's operator finds the cause in its log."
	recordsHint  = "The session's records have the details."
)

// internalProblem returns the problem of an error whose text clients must not
// see. The text is in the log, under the ID that the problem has.
func (d *diagnostics) internalProblem(what string, err error) *Problem {
	id := "err_" + ulid.Make().String()
	d.log.Error(what, zap.String("error_id", id), zap.Error(err))
	p := newProblem(http.StatusInternalServerError, "internal", "the server failed at this request", "Its log says why, under "+id)
	p.ErrorID = id
	return p
}

// asProblem returns the problem for an error of the runner.
func (d *diagnostics) asProblem(what string, err error) *Problem {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p
	}
	if e, ok := errors.AsType[*RequestError](err); ok {
		return fromProblem(http.StatusUnprocessableEntity, e.Code, clientProblem(e.Problem, askOtherwise))
	}
	if w, ok := errors.AsType[*runner.WorkspaceError](err); ok {
		d.log.Warn(what, zap.Error(err))
		return fromProblem(http.StatusUnprocessableEntity, "input", record.Problem{Cause: w.Error(), Hint: "Name another directory."})
	}
	if e, ok := errors.AsType[*sessiondir.StateError](err); ok {
		d.log.Warn(what, zap.Error(err))
		return fromProblem(http.StatusServiceUnavailable, "configuration", record.Problem{Cause: e.Error(), Hint: operatorHint})
	}
	e, ok := errors.AsType[*runner.Error](err)
	if !ok {
		return d.internalProblem(what, err)
	}
	status, code := http.StatusServiceUnavailable, ""
	switch e.Status {
	case runner.ExitInput:
		status, code = http.StatusUnprocessableEntity, "input"
	case runner.ExitUntrusted:
		status, code = http.StatusForbidden, "untrusted"
	case runner.ExitConfig:
		code = "configuration"
	case runner.ExitAuth:
		code = "model"
	case runner.ExitSandboxStart:
		code = "sandbox"
	case runner.ExitFatal:
		code = "records"
	default:
		return d.internalProblem(what, err)
	}
	d.log.Warn(what, zap.Error(err))
	fallback := operatorHint
	if status == http.StatusUnprocessableEntity {
		fallback = askOtherwise
	}
	return fromProblem(status, code, clientProblem(e.Problem, fallback))
}

// fromProblem returns a problem whose detail is the cause and the hint of another.
func fromProblem(status int, code string, p record.Problem) *Problem {
	out := newProblem(status, code, "", "")
	out.Detail = strings.TrimRight(p.Cause, ". ") + ". " + p.Hint
	return out
}

// asOwnProblem turns errors that huma makes itself into a [Problem].
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
		return newProblem(e.Status, "internal", "the server failed at this request", "Try again; its log may say more"), nil
	}
	p := newProblem(e.Status, code, "the request is not as the API says", "errors names each place; /openapi.json describes all requests")
	for _, d := range e.Errors {
		if d != nil { // d.Value is the client's own text, and may be long: it is left out
			p.Errors = append(p.Errors, Place{Location: d.Location, Message: d.Message})
		}
	}
	return p, nil
}
