package dispatch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/internal/utf8text"
	"github.com/caisson-run/caisson/tools/policy"
	"github.com/caisson-run/caisson/tools/workspace"
)

// round is the calls of one assistant message while they run.
type round struct {
	d      *Dispatcher
	ctx    context.Context //nolint:containedctx // a round is one call of Round and lives no longer
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	fatal error
}

// pending is one call of a round. It belongs to the scan until its goroutine
// starts.
type pending struct {
	call    tools.Call
	tool    *tools.RegisteredTool
	hash    string
	paths   []string
	summary string
	verdict policy.Verdict
	// commands are what the policy judged, if they depend on earlier calls.
	commands []string
	// remember is the key of an answer for the session.
	remember approval.AnswerKey
	// dangerous is the dangerous part of a command, safe for display, or "". Only
	// an answer to this very command allows it.
	dangerous string
	// mustAsk reports that the decider wants a person to see this very call.
	mustAsk bool
	confirm *confirmation
	ticket  *ticket
	ended   bool // during the scan
	result  tools.Result
}

// Round runs all calls of one assistant message and returns one result each, in
// request order. Before any of them runs, it checks the name, input, paths and
// policy of every call. An error ends the run and wraps [tools.ErrSandboxStart],
// [tools.ErrSandboxLost], [ErrNoApprover] or [tools.ErrRecord]; the results are
// complete even then. Cancelling ctx cancels every call with
// tool.failed{cancelled}, and is no error.
func (d *Dispatcher) Round(ctx context.Context, calls []tools.Call) ([]tools.Result, error) {
	r := d.beginRound(ctx)
	defer d.finishRound(r)
	all := make([]*pending, len(calls))
	for i, call := range calls {
		all[i] = &pending{call: call, result: tools.Result{CallID: call.ID, Name: call.Name}}
		r.scanCall(all[i])
	}
	r.consultDecider(all)
	r.resolveWithoutAsking(all)
	r.runAll(all)
	results := make([]tools.Result, len(all))
	for i, p := range all {
		results[i] = p.result
	}
	return results, r.fatalError()
}

func (d *Dispatcher) beginRound(ctx context.Context) *round {
	ctx, cancel := context.WithCancelCause(ctx)
	r := &round{d: d, ctx: ctx, cancel: cancel}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		cancel(errClosed)
		return r
	}
	d.rounds[r] = struct{}{}
	d.running.Add(1) // so that nothing is added to zero while Close waits
	return r
}

func (d *Dispatcher) finishRound(r *round) {
	r.cancel(nil)
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, open := d.rounds[r]; open {
		delete(d.rounds, r)
		d.running.Done()
	}
}

// stopRun ends the run and cancels all calls. The first cause stays.
func (r *round) stopRun(err error) {
	r.mu.Lock()
	if r.fatal == nil {
		r.fatal = err
	}
	r.mu.Unlock()
	r.cancel(err)
}

func (r *round) fatalError() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fatal
}

// emit reports an event. If it can't be recorded, the run ends.
func (r *round) emit(ev Event) error {
	err := r.d.out.emit(ev)
	if err != nil {
		r.stopRun(err)
	}
	return err
}

func (r *round) scanCall(p *pending) {
	var fail *tools.Error
	if err := callGuarded(func() { fail = r.checkCall(p) }); err != nil {
		fail = &tools.Error{Class: tools.ErrorExecution, Reason: "definition_panic", Err: err}
	}
	if fail != nil && !p.ended {
		r.refuseCall(p, fail)
	}
}

func (r *round) checkCall(p *pending) *tools.Error {
	tool, found := r.d.tools.Find(string(p.call.Name))
	if !found {
		name := tools.Name(utf8text.Clip(utf8text.Repair(string(p.call.Name)), tools.MaxNameBytes)) // it goes into records
		p.call.Name, p.result.Name = name, name
		return unknownTool(name, r.d.Definitions())
	}
	p.tool = tool
	p.call.Name, p.result.Name = tool.Definition.Name, tool.Definition.Name
	if !r.d.opts.Allow(tool.Definition) {
		return r.notPermitted(tool)
	}
	if p.call.InputError != "" {
		r.rejectInput(p, []string{p.call.InputError})
		return nil
	}
	canonical, problems := tool.AcceptInput(p.call.Input)
	if len(problems) > 0 {
		r.rejectInput(p, problems)
		return nil
	}
	p.call.Input, p.hash = canonical, hashInput(canonical)
	p.summary = summaryLine(tool.Definition, canonical)
	if fail := r.checkPaths(p); fail != nil {
		return fail
	}
	return r.checkPolicy(p)
}

func (r *round) notPermitted(tool *tools.RegisteredTool) *tools.Error {
	fail := &tools.Error{
		Class: tools.ErrorPermissionDenied, Reason: "not_permitted", Visible: true,
		Message: fmt.Sprintf("Tool %q is not permitted in this session.", tool.Wire),
	}
	if r.d.opts.Refusal != nil {
		if reason, message := r.d.opts.Refusal(tool.Definition); reason != "" {
			fail.Reason, fail.Message = reason, message
		}
	}
	return fail
}

func (r *round) checkPaths(p *pending) *tools.Error {
	if p.tool.Definition.Paths == nil {
		return nil
	}
	paths := p.tool.Definition.Paths(p.call.Input)
	for _, path := range paths {
		if fail := scopeFailure(r.d.opts.Scope(path)); fail != nil {
			return fail
		}
	}
	p.paths = claimPaths(paths, r.d.opts.Workspace, r.d.opts.Mount)
	return nil
}

func (r *round) checkPolicy(p *pending) *tools.Error {
	if p.tool.Definition.Typed {
		p.commands = p.tool.Definition.Commands(p.call.Input)
	}
	p.verdict = r.decide(p)
	switch p.verdict.Mode {
	case policy.ModeAuto:
		return nil
	case policy.ModePrompt, policy.ModePromptOnce:
		p.remember = p.answerKey()
		p.confirm = newConfirmation(p)
		return nil
	}
	message := fmt.Sprintf("The policy refuses tool %q (class %s); don't try it again in this session.", p.tool.Wire, p.tool.Definition.Class)
	switch {
	case p.verdict.Command == policy.AnyCommand:
		message = fmt.Sprintf("The policy refuses some commands, and can't tell what this input of %q would run. Type whole lines of plain text instead: no keys but enter and ctrl-c, d, z or \\, no history, no aliases.", p.tool.Wire)
	case p.verdict.As != "":
		message = fmt.Sprintf("The policy refuses what this call of %q does, by its rule for %q; don't try that again in this session.", p.tool.Wire, p.verdict.As)
	}
	return &tools.Error{Class: tools.ErrorPermissionDenied, Reason: "mode_deny", Message: message, Visible: true}
}

func (p *pending) answerKey() approval.AnswerKey {
	return approval.AnswerKey{Tool: p.call.Name, As: p.verdict.As, Command: p.verdict.Command, Definition: p.tool.Definition.Hash}
}

// isOneOff reports whether an allow covers only this call.
func (p *pending) isOneOff() bool { return p.dangerous != "" || p.mustAsk }

func (r *round) decide(p *pending) policy.Verdict {
	return r.raiseMode(p, r.d.opts.Policy.DecideCall(r.d.danger, p.tool.Definition, r.d.opts.Workspace, p.call.Input))
}

// isStillAsJudged reports whether an earlier call has left the commands as they were
// judged, or others that need no answer either.
func (r *round) isStillAsJudged(p *pending) bool {
	return !p.tool.Definition.Typed || slices.Equal(p.commands, p.tool.Definition.Commands(p.call.Input)) ||
		p.confirm == nil && r.decide(p).Mode == policy.ModeAuto
}

// raiseMode makes a dangerous command ask each time. If nobody can be asked, it
// runs as the policy decides, with a warning.
func (r *round) raiseMode(p *pending, v policy.Verdict) policy.Verdict {
	if p.tool.Definition.Commands == nil || v.Mode != policy.ModeAuto && v.Mode != policy.ModePromptOnce && v.Mode != policy.ModePrompt {
		return v
	}
	find := r.d.danger.Find
	if p.tool.Definition.Typed {
		find = r.d.danger.FindTyped
	}
	commands := p.tool.Definition.Commands(p.call.Input)
	for _, command := range commands {
		if p.dangerous = find(command); p.dangerous != "" {
			break
		}
	}
	// An answer about plain text doesn't cover what could be any command.
	unknown := slices.Contains(commands, policy.AnyCommand) && v.Command == "" && !r.d.danger.IsEmpty()
	if unknown && (v.Mode != policy.ModeAuto || r.d.opts.Broker != nil && !r.d.opts.Policy.NoPrompts) {
		v = policy.Verdict{Mode: policy.ModePrompt, Rule: "input that may run any command, " + v.Rule, As: v.As, Command: policy.AnyCommand}
	}
	switch {
	case p.dangerous == "" || v.Mode == policy.ModePrompt:
		return v
	case r.d.opts.Broker != nil && !r.d.opts.Policy.NoPrompts:
		return policy.Verdict{Mode: policy.ModePrompt, Rule: "dangerous command " + p.dangerous + ", " + v.Rule, As: v.As, Command: v.Command}
	case v.Mode == policy.ModeAuto:
		r.warn(p, fmt.Sprintf("a command that is called dangerous ran without an answer, because no one can be asked: %s", p.dangerous))
	}
	return v
}

func (r *round) runAll(all []*pending) {
	var open, asking []*pending
	var arrivals []arrival
	for _, p := range all {
		if !p.ended {
			open = append(open, p)
			if p.needsReply() {
				asking = append(asking, p)
			}
			needs := claim{class: p.tool.Definition.Class, parallel: p.tool.Definition.Parallel, paths: p.paths}
			if p.tool.Definition.InOrder {
				needs.inOrder = p.tool.Definition.Name
			}
			arrivals = append(arrivals, arrival{claim: needs, ready: p.confirm == nil || isClosed(p.confirm.done)})
		}
	}
	tickets := r.d.slots.addCalls(arrivals)
	for i, p := range open {
		p.ticket = tickets[i]
	}
	var wg sync.WaitGroup
	wg.Go(func() { r.requestConfirmations(asking) })
	for _, p := range open {
		wg.Go(func() { r.runCall(p) })
	}
	wg.Wait()
}

// maxChanges bounds how often a call is confirmed again because what it would change
// has changed.
const maxChanges = 3

func (r *round) runCall(p *pending) {
	defer r.d.slots.giveBack(p.ticket)
	for changes := 0; ; changes++ {
		if fail := r.waitForConfirmation(p); fail != nil {
			r.refuseCall(p, fail)
			return
		}
		if err := r.d.slots.acquireSlot(r.ctx, p.ticket); err != nil {
			r.refuseCall(p, r.cancelledError(err))
			return
		}
		if r.isStillAsShown(p) {
			break
		}
		if changes == maxChanges {
			message := "What this call would change was changed by something else each time that it was allowed. Wait until that has ended, and look at the file."
			r.refuseCall(p, &tools.Error{Class: tools.ErrorExecution, Reason: "changing", Message: message, Visible: true})
			return
		}
		r.d.slots.holdTicket(p.ticket)
		r.confirmAgain(p)
	}
	r.executeCall(p)
}

func (r *round) cancelledError(cause error) *tools.Error {
	fail := &tools.Error{Class: tools.ErrorCancelled, Message: "Cancelled.", Visible: true, Err: cause}
	if r.fatalError() != nil {
		fail.Reason, fail.Message = "run_ended", "Cancelled: the run has ended."
	}
	return fail
}

func (r *round) rejectInput(p *pending, problems []string) {
	p.ended = true
	for i, problem := range problems {
		problems[i] = utf8text.Clip(utf8text.Repair(problem), maxMessagePartBytes)
	}
	text := "The input is not valid:\n- " + strings.Join(problems, "\n- ")
	p.result.IsError, p.result.Class = true, tools.ErrorValidation
	p.result.Content = []tools.Block{{Text: r.boundText(p, text)}}
	_ = r.emit(InputInvalid{CallID: p.call.ID, Name: p.call.Name, Errors: problems})
}

func (r *round) warn(p *pending, message string, fields ...zap.Field) {
	r.d.log.Warn(message, append(fields, zap.String("call", p.call.ID), zap.String("tool", string(p.call.Name)))...)
	_ = r.emit(Warning{CallID: p.call.ID, Message: message})
}

// pathsForDisplay returns a call's projected changes, safe for display.
func (p *pending) pathsForDisplay() (paths []string, hidden bool) {
	if p.tool.Definition.Class != tools.ClassWrite {
		return nil, false
	}
	for _, path := range p.paths {
		safe, h := tools.Display(path)
		paths, hidden = append(paths, safe), hidden || h
	}
	return paths, hidden
}

// inputForDisplay returns a call's input, safe and elided. Its strings may hide
// something that the JSON text shows as an escape.
func inputForDisplay(input json.RawMessage) (text string, hidden bool) {
	safe, _ := tools.Display(string(input))
	return tools.Elide(safe, maxShownInput), hiddenInJSON(input)
}

// hiddenInJSON reports whether a string of valid JSON has a character, other than
// newlines and tabs, that a terminal would not show.
func hiddenInJSON(input []byte) bool {
	dec := json.NewDecoder(bytes.NewReader(input))
	for {
		token, err := dec.Token()
		if err != nil {
			return false // the end
		}
		text, _ := token.(string)
		if _, hidden := tools.DisplayLines(text); hidden {
			return true
		}
	}
}

// nameScope checks a path only by its name: no ".." may lead out, and an absolute
// path must be at or below one of the roots.
func nameScope(roots ...string) func(string) error {
	return func(p string) error {
		if strings.ContainsRune(p, 0) {
			return &workspace.Error{Kind: workspace.KindInvalid, Path: p, Detail: "a path can't hold a NUL"}
		}
		clean := path.Clean(p)
		if !path.IsAbs(clean) && clean != ".." && !strings.HasPrefix(clean, "../") {
			return nil
		}
		for _, root := range roots {
			if root != "" && within(clean, root) {
				return nil
			}
		}
		return &workspace.Error{Kind: workspace.KindEscape, Path: p, Detail: "outside the workspace"}
	}
}

// scopeFailure returns the failure for a scope checker's error, or nil if the tool
// itself will report the problem.
func scopeFailure(err error) *tools.Error {
	if err == nil {
		return nil
	}
	var we *workspace.Error
	if !errors.As(err, &we) {
		return &tools.Error{Class: tools.ErrorPermissionDenied, Reason: "scope_unknown", Err: err}
	}
	switch we.Kind {
	case workspace.KindEscape:
		return &tools.Error{Class: tools.ErrorPermissionDenied, Reason: "workspace_escape", Message: we.Error(), Visible: true, Err: err}
	case workspace.KindInvalid:
		return &tools.Error{Class: tools.ErrorPermissionDenied, Reason: "invalid_path", Message: we.Error(), Visible: true, Err: err}
	}
	return nil
}

// Bounds of the answer to an unknown name: thousands of server tools would fill the
// model's context.
const (
	maxNamedTools = 40
	maxNearTools  = 3
	leastNearness = 0.6
)

// unknownTool returns the failure for an unknown name. It names likely tools, and
// those offered, our own first.
func unknownTool(name tools.Name, offered []tools.Definition) *tools.Error {
	var known []string
	for _, servers := range []bool{false, true} {
		for _, def := range offered {
			if wire, err := def.Name.LLM(); err == nil && (def.Name.Server() != "") == servers {
				known = append(known, string(wire))
			}
		}
	}
	rest := ""
	if more := len(known) - maxNamedTools; more > 0 {
		known, rest = known[:maxNamedTools], fmt.Sprintf(" and %d more", more)
	}
	if slices.ContainsFunc(offered, func(def tools.Definition) bool { return def.Name == tools.NameSearchTools }) {
		rest += fmt.Sprintf(". %s finds and loads tools of servers", tools.NameSearchTools)
	}
	shown, _ := tools.Display(string(name))
	message := fmt.Sprintf("There is no tool %q.%s The tools are: %s%s.", shown, hintAtTools(name, offered), strings.Join(known, ", "), rest)
	return &tools.Error{Class: tools.ErrorNotFound, Reason: "unknown_tool", Message: message, Visible: true}
}

func hintAtTools(name tools.Name, offered []tools.Definition) string {
	var names, equivalent []tools.Name
	for _, def := range offered {
		names = append(names, def.Name)
		if tools.IsSpelling(string(name), def.Name) {
			equivalent = append(equivalent, def.Name)
		}
	}
	if quoted := quoteNames(equivalent[:min(len(equivalent), maxNearTools)]); quoted != "" {
		return " Use " + quoted + " instead."
	}
	if quoted := quoteNames(tools.NearestNames(string(name), names, leastNearness, maxNearTools)); quoted != "" {
		return " Did you mean " + quoted + "?"
	}
	return ""
}

func quoteNames(names []tools.Name) string {
	var quoted []string
	for _, name := range names {
		if wire, err := name.LLM(); err == nil {
			quoted = append(quoted, fmt.Sprintf("%q", wire))
		}
	}
	return strings.Join(quoted, ", ")
}
