package bridge

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
)

// Stage is what a [Call] reports.
type Stage string

// The stages. A started call is completed or has failed later. A refused request only
// fails.
const (
	Started   Stage = "started"
	Completed Stage = "completed"
	Failed    Stage = "failed"
)

// Class is why a call failed.
type Class string

// The classes.
const (
	// ClassBudget is a limit that was reached before or during the answer, or a ledger
	// that can't be used.
	ClassBudget Class = "budget"
	// ClassProvider is a provider that can't be reached, refused the request, or broke
	// off its answer.
	ClassProvider Class = "provider"
	// ClassRefused is a request that the bridge refused.
	ClassRefused Class = "refused"
	// ClassClientGone is an agent that didn't wait for its answer.
	ClassClientGone Class = "client_gone"
	// ClassTooSlow is one of the profile's timeouts.
	ClassTooSlow Class = "too_slow"
)

// Call is an event of a call, or a request that was refused. Its slices must not be
// changed.
type Call struct {
	Stage   Stage
	Command int
	// Protocol is a guess and Endpoint the method and path, if there is no such
	// endpoint.
	Protocol Protocol
	Endpoint string // such as "messages", "responses/compact" or "countTokens"
	// Asked is the agent's name for the model, Profile the profile's, and Model the
	// provider's. AnsweredBy is the name in the answer, "" if it has none.
	Asked, Profile, Model, AnsweredBy string
	// Withheld are the types of tools, and the names of members with the same effect,
	// that were removed from the request.
	Withheld []string
	// Request is the agent's body.
	Request []byte
	// Warnings are limits of which four fifths are used, each in one event.
	Warnings []limits.ExceededError

	// The following are set at the end.

	// Answer is the answer's body as the agent got it. After a cut, it includes the
	// error at its end.
	Answer []byte
	// Usage is what counts against limits; zero if nothing does. Estimated is set if
	// some of it is an estimate.
	Usage     limits.Usage
	Estimated bool
	Finish    string // the provider's word
	// Status is the status that the agent got, 0 for none.
	Status int
	// Duration is the time since the request arrived.
	Duration time.Duration

	// Class, Message and Err are for failures. Message is for users. Err is the cause,
	// and may be nil. Limit is the limit that was reached.
	Class   Class
	Message string
	Err     error
	Limit   *limits.ExceededError
	// Exhausted is set if nothing useful is left of Limit. Otherwise a smaller request
	// would have fitted.
	Exhausted bool
}

// call is a request that is being answered.
type call struct {
	bridge  *Bridge
	w       http.ResponseWriter
	r       *http.Request
	start   time.Time
	request request
	report  Call
	budget  budget
	tally   tally
	// sent is set once the provider may have read the request, and charge for it.
	sent atomic.Bool
	// gone is set once the agent doesn't read its answer any more.
	gone atomic.Bool
	// cancel ends the request to the provider.
	cancel context.CancelCauseFunc
}

// lingerTime is how long the provider's answer is read without an agent, because its end
// tells the usage.
const lingerTime = 5 * time.Second

// leave notes that the agent has gone. It may be called again.
func (c *call) leave() {
	if !c.gone.Swap(true) {
		time.AfterFunc(lingerTime, func() { c.cancel(errUnread) })
	}
}

// emit reports the call's stage.
func (c *call) emit(s Stage) {
	c.report.Stage = s
	if s != Started {
		c.report.Duration = time.Since(c.start)
	}
	c.bridge.opts.Call(c.report)
}

// fail reports a failure without an answer to the agent.
func (c *call) fail(class Class, status int, err error) {
	c.report.Class, c.report.Status, c.report.Err = class, status, err
	if c.report.Message == "" && err != nil {
		c.report.Message = err.Error()
	}
	c.emit(Failed)
}

// refuse answers with an error of the bridge, and reports it.
func (c *call) refuse(status int, message string) {
	c.refuseAs(ClassRefused, status, message, nil)
}

func (c *call) refuseAs(class Class, status int, message string, err error) {
	message = "caisson: " + message
	c.report.Message = message
	c.report.Answer = errorBody(c.report.Protocol, status, message)
	writeError(c.w, c.report.Protocol, status, message)
	c.fail(class, status, err)
}

// serve reads the request, reserves what it may use, and passes it on.
func (c *call) serve() {
	raw, ok := c.readBody()
	if !ok {
		return
	}
	q := &c.request
	c.report.Request = raw
	err := q.rewrite(raw)
	c.report.Asked, c.report.Withheld = q.asked, q.withheld
	if err != nil {
		c.refuse(http.StatusBadRequest, err.Error())
		return
	}
	if q.profile, err = c.bridge.findProfile(q.endpoint.protocol, q.asked); err != nil {
		// With 404, the provider's status, some agents try their other models.
		c.refuse(http.StatusBadRequest, err.Error())
		return
	}
	c.report.Profile, c.report.Model = q.profile.Name, q.profile.Model
	q.setModel()
	c.tally.protocol = q.endpoint.protocol
	if !q.endpoint.free && !c.reserve() {
		return
	}
	c.emit(Started)
	c.forward()
}

// reserve reserves what the request may use, and bounds the answer to it.
func (c *call) reserve() bool {
	q := &c.request
	demand := limits.Demand{Input: c.bridge.estimate(q), Output: q.profile.defaultOutput(), Price: q.profile.Price}
	asked, least := q.output()
	most := cmp.Or(q.profile.MaxOutputTokens, maxOutput)
	if asked > 0 {
		demand.Output = min(asked, most)
	}
	if least > most {
		c.refuse(http.StatusBadRequest, fmt.Sprintf("thinking.budget_tokens is larger than an answer can be, %d tokens", most))
		return false
	}
	demand.MinOutput = min(max(minOutput, least), demand.Output)
	entry, err := c.bridge.opts.Ledger.Reserve(c.r.Context(), q.profile.Name, demand)
	switch limit, ok := errors.AsType[*limits.ExceededError](err); {
	case ok:
		c.report.Limit, c.report.Exhausted = limit, probe(c.r.Context(), c.bridge.opts.Ledger, q.profile) != nil
		c.refuseAs(ClassBudget, http.StatusBadRequest, limit.Error(), nil)
		return false
	case err != nil && c.r.Context().Err() != nil:
		c.fail(ClassClientGone, 0, err)
		return false
	case err != nil:
		c.refuseAs(ClassBudget, http.StatusBadRequest, "the use of models can't be counted", err)
		return false
	}
	c.budget = budget{ledger: c.bridge.opts.Ledger, profile: q.profile, input: demand.Input, step: max(demand.Output/4, minOutput)}
	c.budget.add(entry)
	c.report.Warnings, c.budget.warnings = c.budget.warnings, nil
	if err := errors.Join(q.setOutput(entry.Demand.Output), q.askForUsage()); err != nil {
		_ = c.budget.settle(nil) // the refusal says more
		c.refuse(http.StatusBadRequest, err.Error())
		return false
	}
	return true
}

var (
	errNoHeaders = errors.New("the provider did not begin to answer in time")
	errSilent    = errors.New("the provider fell silent in the middle of its answer")
	errSlow      = errors.New("the provider did not end its answer in time")
	errTooLarge  = errors.New("the answer is larger than allowed")
	errBroken    = errors.New("the provider gave no whole answer")
	errRedirect  = errors.New("the provider answered with a redirect, which is not followed")
	// errUnread is an agent that has gone, or doesn't read.
	errUnread = errors.New("the agent did not read its answer")
	errCut    = errors.New("the budget is used up")
)

// forward sends the request to the provider and passes the answer on.
func (c *call) forward() {
	q := &c.request
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(c.r.Context()))
	defer cancel(nil)
	c.cancel = cancel
	defer context.AfterFunc(c.r.Context(), c.leave)()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, q.url(c.r.URL.Query()).String(), bytes.NewReader(q.body.encode()))
	if err != nil {
		c.end(ctx, 0, err)
		return
	}
	req.Header = q.header(c.r.Header)
	trace := &httptrace.ClientTrace{WroteHeaders: func() { c.sent.Store(true) }}
	req = req.WithContext(httptrace.WithClientTrace(ctx, trace))
	wait := time.AfterFunc(q.profile.HeaderTimeout, func() { cancel(errNoHeaders) })
	res, err := c.bridge.opts.Transport.RoundTrip(req)
	wait.Stop()
	if err != nil {
		c.end(ctx, 0, fmt.Errorf("%w: %w", errBroken, err))
		return
	}
	c.sent.Store(true)
	defer func() { _ = res.Body.Close() }() // the answer is complete or discarded
	end := time.AfterFunc(q.profile.AnswerTimeout, func() { cancel(errSlow) })
	defer end.Stop()
	if err := c.checkResponse(res); err != nil {
		c.end(ctx, 0, err)
		return
	}
	c.writeHeader(res)
	c.end(ctx, res.StatusCode, c.copyAnswer(res))
}

// checkResponse hides the profile's secrets in a response. It refuses redirects, since
// the request is only for the profile's provider, and answers that can't be read.
func (c *call) checkResponse(res *http.Response) error {
	if res.StatusCode >= 300 && res.StatusCode < 400 || res.StatusCode == http.StatusSwitchingProtocols {
		return fmt.Errorf("%w: %d", errRedirect, res.StatusCode)
	}
	if err := c.bridge.secrets[c.request.profile.Name].Hide(res, here); err != nil {
		return fmt.Errorf("%w: %w", errBroken, err)
	}
	if coding := res.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return fmt.Errorf("%w: in the coding %s", errBroken, shorten(coding))
	}
	return nil
}

// droppedHeaders are headers of answers that are for the bridge, or about the key's
// account.
var droppedHeaders = []string{
	"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
	"Set-Cookie", "Set-Cookie2", "Location", "Alt-Svc", "Strict-Transport-Security", "Content-Encoding", "Content-Length", "Www-Authenticate",
	"Openai-Organization", "Openai-Project", "Anthropic-Organization-Id",
}

func (c *call) writeHeader(res *http.Response) {
	dropped := slices.Clone(droppedHeaders)
	for name := range strings.SplitSeq(strings.Join(res.Header.Values("Connection"), ","), ",") {
		dropped = append(dropped, http.CanonicalHeaderKey(strings.TrimSpace(name)))
	}
	for name, values := range res.Header {
		if !slices.Contains(dropped, name) {
			c.w.Header()[name] = values
		}
	}
	c.w.WriteHeader(res.StatusCode)
	_ = http.NewResponseController(c.w).Flush() // the first write shows a failure
}

// copyAnswer passes the answer's body on and counts it.
func (c *call) copyAnswer(res *http.Response) error {
	control := http.NewResponseController(c.w)
	idle := c.request.profile.IdleTimeout
	defer func() { _ = control.SetWriteDeadline(time.Time{}) }() // of the next answer
	var out answerWriter
	mediaType, _, err := mime.ParseMediaType(res.Header.Get("Content-Type"))
	refused := res.StatusCode >= http.StatusBadRequest
	unspecific := err != nil || mediaType == "text/plain" || mediaType == "application/octet-stream"
	if (mediaType == "text/event-stream" || c.request.stream && unspecific) && !refused {
		out = &eventWriter{call: c}
	} else {
		out = &wholeWriter{call: c, refused: refused}
	}
	buf := make([]byte, 4<<10) // small, so that a cut comes soon
	for left := int64(MaxAnswerBytes); ; {
		timer := time.AfterFunc(idle, func() { c.cancel(errSilent) })
		n, err := res.Body.Read(buf)
		timer.Stop()
		left -= int64(n)
		if left < 0 {
			return errTooLarge
		}
		_ = control.SetWriteDeadline(time.Now().Add(idle)) // egress has one
		if failure := out.write(buf[:n], err != nil); failure != nil {
			return failure
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("%w: %w", errBroken, err)
		}
	}
}

// answerWriter passes an answer on.
type answerWriter interface {
	// write passes on what arrived; last is set for the answer's end.
	write(data []byte, last bool) error
}

// pass sends a part of the answer to the agent, until the agent has gone.
func (c *call) pass(data []byte) {
	if len(data) == 0 {
		return
	}
	c.report.Answer = append(c.report.Answer, data...)
	if c.gone.Load() {
		return
	}
	_, err := c.w.Write(data)
	if err == nil {
		err = http.NewResponseController(c.w).Flush()
	}
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		c.leave()
	}
}

// wholeWriter passes on an answer that is not a stream. Until its end, all of it counts
// as text.
type wholeWriter struct {
	call    *call
	refused bool
}

func (o *wholeWriter) write(data []byte, last bool) error {
	c := o.call
	if !o.refused {
		c.tally.text += int64(len(data))
		if !c.withinBudget() {
			return errCut
		}
	}
	c.pass(data)
	if last && !o.refused {
		c.tally.text = 0
		c.tally.add(c.report.Answer)
	}
	return nil
}

// eventWriter passes on a stream of events, in whole lines.
type eventWriter struct {
	call    *call
	pending []byte // an unfinished line
	data    []byte // of an unfinished event
	// afterCR is set if the last line ended with CR: LF then belongs to it.
	afterCR bool
}

// maxEventBytes bounds an event. The last one of Responses repeats the whole answer.
const maxEventBytes = 16 << 20

func (o *eventWriter) write(data []byte, last bool) error {
	next := len(o.pending) // where to look for the end of a line
	o.pending = append(o.pending, data...)
	text := o.pending
	done, event := 0, 0 // the ends of the last line and the last event
	for {
		n := bytes.IndexAny(text[next:], "\r\n")
		if n < 0 {
			break
		}
		line := text[done : next+n]
		ending := text[next+n]
		done = next + n + 1
		next = done
		if len(line) == 0 && ending == '\n' && o.afterCR {
			o.afterCR = false
			continue
		}
		o.afterCR = ending == '\r'
		if len(line) > 0 {
			o.addLine(line)
			continue
		}
		if err := o.endEvent(); err != nil {
			o.call.pass(text[:event])
			return err
		}
		event = done
	}
	if last {
		o.addLine(text[done:])
		if err := o.endEvent(); err != nil {
			o.call.pass(text[:event])
			return err
		}
		done = len(text)
	}
	if len(o.data)+len(text)-done > maxEventBytes {
		return errTooLarge
	}
	if done == 0 {
		return nil
	}
	o.call.pass(text[:done])
	o.pending = slices.Clone(text[done:])
	return nil
}

func (o *eventWriter) addLine(line []byte) {
	if value, ok := bytes.CutPrefix(line, []byte("data:")); ok {
		o.data = append(append(o.data, bytes.TrimPrefix(value, []byte(" "))...), '\n')
	}
}

func (o *eventWriter) endEvent() error {
	if len(o.data) == 0 {
		return nil
	}
	o.call.tally.addEvent(o.data)
	o.data = o.data[:0]
	if !o.call.withinBudget() {
		return errCut
	}
	return nil
}

// withinBudget reports whether the answer so far is within what is reserved, after
// reserving more if that is necessary.
func (c *call) withinBudget() bool {
	if c.request.endpoint.free {
		return true
	}
	u, _ := c.tally.count(c.budget.input)
	if !c.tally.finished() {
		u.OutputTokens = max(u.OutputTokens, c.tally.output())
	}
	return c.budget.covers(context.WithoutCancel(c.r.Context()), u)
}

// end settles and reports the call, whose answer had a status, 0 for none. err is why
// it broke off, nil if it is whole.
func (c *call) end(ctx context.Context, status int, err error) {
	settleErr := c.budget.settle(c.used(status, err))
	if errors.Is(err, errCut) {
		c.budget.findLimit(c.r.Context())
	}
	class, message := c.classify(ctx, err)
	c.report.Status = status
	switch {
	case err == nil && status < http.StatusBadRequest && !c.tally.failed:
	case err == nil && status < http.StatusBadRequest:
		class, message = ClassProvider, "the provider reported a failure in its answer"
	case err == nil:
		class, message = ClassProvider, fmt.Sprintf("the provider answered %d %s", status, http.StatusText(status))
	}
	abort := false
	if err != nil && class != ClassClientGone {
		abort = !c.tellFailure(class, message)
	}
	if settleErr != nil && class == "" {
		class, message, err = ClassBudget, "the use of models can't be counted", settleErr
	}
	c.report.Warnings = c.budget.warnings
	c.report.AnsweredBy, c.report.Finish = c.tally.model, c.tally.finish
	if class == "" {
		c.emit(Completed)
		return
	}
	c.report.Class, c.report.Message, c.report.Err = class, message, err
	c.emit(Failed)
	if abort {
		panic(http.ErrAbortHandler)
	}
}

// classify returns the class and the message for users of what broke an answer off.
func (c *call) classify(ctx context.Context, err error) (Class, string) {
	cause := context.Cause(ctx)
	switch {
	case err == nil:
		return "", ""
	case errors.Is(err, errCut):
		c.report.Limit, c.report.Exhausted = c.budget.limit, c.budget.limit != nil
		if c.budget.limit != nil {
			return ClassBudget, c.budget.limit.Error() + "; the answer was cut"
		}
		return ClassBudget, "other requests hold the rest of the budget; the answer was cut"
	case c.gone.Load(), c.r.Context().Err() != nil:
		return ClassClientGone, errUnread.Error()
	case errors.Is(cause, errNoHeaders), errors.Is(cause, errSilent), errors.Is(cause, errSlow):
		return ClassTooSlow, cause.Error()
	case errors.Is(err, errTooLarge):
		return ClassProvider, errTooLarge.Error()
	case errors.Is(err, errRedirect):
		return ClassProvider, errRedirect.Error()
	}
	return ClassProvider, errBroken.Error()
}

// tellFailure tells the agent why an answer broke off: by a status if nothing was sent,
// or by an event at the end of a stream. It returns false if it can't.
func (c *call) tellFailure(class Class, message string) bool {
	status := http.StatusBadGateway
	switch class {
	case ClassBudget:
		status = http.StatusBadRequest
	case ClassTooSlow:
		status = http.StatusGatewayTimeout
	}
	message = "caisson: " + message
	if c.report.Status == 0 {
		c.report.Status = status
		c.report.Answer = errorBody(c.report.Protocol, status, message)
		writeError(c.w, c.report.Protocol, status, message)
		return true
	}
	if mediaType, _, err := mime.ParseMediaType(c.w.Header().Get("Content-Type")); err != nil || mediaType != "text/event-stream" {
		return false
	}
	c.pass(errorEvent(c.report.Protocol, status, message))
	return true
}

// used returns what counts against limits, nil for nothing, and notes it in the report.
func (c *call) used(status int, err error) *limits.Usage {
	q := &c.request
	switch {
	case q.endpoint.free, !c.sent.Load(), err == nil && status >= http.StatusBadRequest, errors.Is(err, errRedirect):
		return nil
	}
	u, estimated := c.tally.count(c.budget.input)
	switch {
	case err != nil:
		u.CostMicroUSD, estimated = nil, true
		u.OutputTokens = max(u.OutputTokens, c.tally.output())
		if c.gone.Load() { // perhaps to hide what the provider counts at the end
			u.OutputTokens = max(u.OutputTokens, c.budget.output)
		}
	case !estimated:
		c.bridge.learn(q, u.Tokens()-u.OutputTokens)
	}
	if q.profile.Price != nil { // or the provider's own, if it tells one
		u.CostMicroUSD = new(q.profile.Price.Cost(u))
	}
	c.report.Usage, c.report.Estimated = u, estimated
	return &u
}

// budget is what is reserved for a call.
type budget struct {
	ledger  loop.Ledger
	profile *Profile
	input   int64 // the estimated input
	step    int64 // the output to reserve at once, once more is needed
	entries []loop.LedgerEntry
	// tokens, output and cost are the sums of the reservations.
	tokens, output, cost int64
	// limit is the limit that is reached.
	limit    *limits.ExceededError
	warnings []limits.ExceededError
}

func (b *budget) add(e loop.LedgerEntry) {
	b.entries = append(b.entries, e)
	b.warnings = append(b.warnings, e.Warnings...)
	cost, _ := e.Demand.Cost()
	b.tokens += min(e.Demand.Tokens(), math.MaxInt64-b.tokens)
	b.cost += min(cost, math.MaxInt64-b.cost)
	b.output += e.Demand.Output
}

// extendTime bounds the wait for a further reservation. It is short: if others must
// settle first, they may be waiting for this one.
const extendTime = 100 * time.Millisecond

var errHeld = errors.New("other requests hold the rest")

// covers reports whether the reservations cover a use, after reserving more.
func (b *budget) covers(ctx context.Context, u limits.Usage) bool {
	for {
		over := u.Tokens() - b.tokens
		if over <= 0 && (b.profile.Price == nil || b.profile.Price.Cost(u) <= b.cost) {
			return true
		}
		over = max(over, 0)
		ctx, cancel := context.WithTimeoutCause(ctx, extendTime, errHeld)
		e, err := b.ledger.Reserve(ctx, b.profile.Name, limits.Demand{Output: over + b.step, MinOutput: over + 1, Price: b.profile.Price})
		cancel()
		switch {
		case err == nil:
			b.add(e)
		case b.step >= minOutput/2:
			b.step /= 2
		default:
			b.limit, _ = errors.AsType[*limits.ExceededError](err)
			return false
		}
	}
}

// findLimit finds the limit that cut an answer, once its use is settled. Before, the
// ledger only waits for this call.
func (b *budget) findLimit(ctx context.Context) {
	if b.limit == nil {
		b.limit = probe(ctx, b.ledger, b.profile)
	}
}

// probe returns the limit that leaves no room for the shortest useful answer, or nil.
func probe(ctx context.Context, ledger loop.Ledger, p *Profile) *limits.ExceededError {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), extendTime, errHeld)
	defer cancel()
	e, err := ledger.Reserve(ctx, p.Name, limits.Demand{Output: minOutput, MinOutput: minOutput, Price: p.Price})
	if err == nil {
		_ = e.Settle(nil) // the next request shows a failure
		return nil
	}
	limit, _ := errors.AsType[*limits.ExceededError](err)
	return limit
}

// settle replaces the reservations by the actual use, nil for none.
func (b *budget) settle(used *limits.Usage) error {
	var errs []error
	for i, e := range b.entries {
		if i > 0 {
			used = nil
		}
		errs = append(errs, e.Settle(used))
	}
	b.entries = nil
	return errors.Join(errs...)
}
