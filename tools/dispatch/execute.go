package dispatch

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/internal/utf8text"
	"github.com/caisson-run/caisson/tools/workspace"
)

// timeoutCause is the cause of a context that ended by its tool's timeout.
type timeoutCause struct{ after time.Duration }

func (t *timeoutCause) Error() string { return fmt.Sprintf("timed out after %v", t.after) }

type panicError struct {
	value any
	stack []byte
}

func (p *panicError) Error() string { return fmt.Sprintf("panic: %v", p.value) }

// callGuarded turns a panic of untrusted code into an error.
func callGuarded(f func()) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{value: v, stack: debug.Stack()}
		}
	}()
	f()
	return nil
}

// errAbandoned means that a tool didn't return after it was cancelled.
var errAbandoned = errors.New("tool did not stop in time and was abandoned")

var errNoReturn = errors.New("tool ended its goroutine without returning")

func (r *round) executeCall(p *pending) {
	<-p.ticket.after
	if err := context.Cause(r.ctx); err != nil {
		r.refuseCall(p, r.cancelledError(err))
		return
	}
	// The call runs as it was checked, shown and approved, whoever had access to
	// the bytes since then; nobody else has this copy.
	p.call.Input = bytes.Clone(p.call.Input)
	if !p.isIntact() {
		r.refuseCall(p, r.tamperedError(p))
		return
	}
	if isClosed(p.tool.Removed()) {
		r.refuseCall(p, removedError(p))
		return
	}
	if !r.isStillAsJudged(p) {
		r.refuseCall(p, &tools.Error{
			Class: tools.ErrorExecution, Reason: "typed_before", Visible: true,
			Message: "Nothing was typed: another call has typed an unfinished line since this one was judged. Look at the terminal, then type again.",
		})
		return
	}
	called := Called{
		CallID: p.call.ID, Name: p.call.Name, InputHash: p.hash, InputBytes: len(p.call.Input),
		Class: p.tool.Definition.Class, Rule: p.verdict.Rule, Summary: p.summary,
	}
	if err := r.emit(called); err != nil {
		r.refuseCall(p, r.cancelledError(err))
		return
	}
	p.ticket.announceStart()
	diff := r.projectUnasked(p)
	start := time.Now()
	out, err, cause := r.executeTool(p)
	took := time.Since(start)
	if isFatal(err) {
		r.stopRun(fmt.Errorf("run tool %s: %w", p.call.Name, err))
	}
	switch {
	case cause != nil:
		r.failCall(p, r.interruptionError(err, cause), out, took)
	case err != nil:
		r.failCall(p, classifyError(err), out, took)
	default:
		r.completeCall(p, out, diff, took)
	}
}

func removedError(p *pending) *tools.Error {
	return &tools.Error{
		Class: tools.ErrorExecution, Reason: "tool_removed", Visible: true,
		Message: fmt.Sprintf("Tool %q was removed or changed before the call began.", p.tool.Wire),
	}
}

// executeTool executes a tool with its timeout. cause is why the context ended
// before the tool returned, or nil.
func (r *round) executeTool(p *pending) (out tools.Output, err, cause error) {
	def := p.tool.Definition
	ctx, cancel := context.WithTimeoutCause(r.ctx, def.Timeout, &timeoutCause{def.Timeout})
	defer cancel()
	events := &callEvents{out: &r.d.out, callID: p.call.ID}
	defer events.close()
	call := p.call
	call.Delta, call.Asked, call.ResultBytes = events.emitDelta, p.confirm != nil, p.resultBytes()

	type outcome struct {
		out tools.Output
		err error
	}
	done := make(chan outcome, 1)
	r.d.running.Go(func() {
		o := outcome{err: errNoReturn}
		defer func() { done <- o }()
		if err := callGuarded(func() { o.out, o.err = p.tool.New().Execute(ctx, &call) }); err != nil {
			o.err = err
		}
	})
	var o outcome
	select {
	case o = <-done:
	case <-ctx.Done():
		select {
		case o = <-done:
		case <-time.After(r.d.opts.Abandon):
			o.err = errAbandoned
			r.warn(p, "tool did not stop after it was cancelled; it was abandoned", zap.Duration("waited", r.d.opts.Abandon))
			if r.d.opts.OnAbandon != nil {
				r.d.opts.OnAbandon(p.call.ID, def)
			}
		}
	}
	return o.out, o.err, context.Cause(ctx)
}

// interruptionError returns the failure of a call whose context ended while it ran,
// by its timeout or by a cancellation.
func (r *round) interruptionError(err, cause error) *tools.Error {
	fail := r.cancelledError(cause)
	if timeout, ok := errors.AsType[*timeoutCause](cause); ok {
		fail = &tools.Error{Class: tools.ErrorTimeout, Visible: true, Err: err, Message: fmt.Sprintf("Timed out after %v.", timeout.after)}
	}
	if own, ok := errors.AsType[*tools.Error](err); ok {
		fail.Partial = own.Partial
	}
	if errors.Is(err, errAbandoned) {
		fail.Reason = "abandoned"
		fail.Message += " The tool did not stop; it may still have an effect."
	}
	return fail
}

func isFatal(err error) bool {
	return errors.Is(err, tools.ErrSandboxStart) || errors.Is(err, tools.ErrSandboxLost) ||
		errors.Is(err, ErrNoApprover) || errors.Is(err, tools.ErrRecord)
}

// classifyError turns a tool's error into a failure. Only texts meant for the model
// are visible.
func classifyError(err error) *tools.Error {
	var own *tools.Error
	var path *workspace.Error
	var limit *limits.ExceededError
	switch {
	case errors.Is(err, tools.ErrSandboxStart):
		return &tools.Error{Class: tools.ErrorExecution, Reason: "sandbox_start", Message: "The sandbox could not start.", Visible: true, Err: err}
	case errors.Is(err, tools.ErrSandboxLost):
		return &tools.Error{Class: tools.ErrorExecution, Reason: "sandbox_lost", Message: "The sandbox was lost.", Visible: true, Err: err}
	case errors.As(err, &own):
		return ownFailure(own, err)
	case errors.As(err, &path):
		fail := &tools.Error{Class: tools.ErrorExecution, Reason: string(path.Kind), Message: path.Error(), Visible: true, Err: err}
		switch path.Kind {
		case workspace.KindEscape:
			fail.Class, fail.Reason = tools.ErrorPermissionDenied, "workspace_escape" // as from the scope check
		case workspace.KindPermission:
			fail.Class = tools.ErrorPermissionDenied
		}
		return fail
	case errors.As(err, &limit):
		return &tools.Error{Class: tools.ErrorExecution, Reason: "limit_" + string(limit.Kind), Message: limit.Error(), Visible: true, Err: err}
	}
	return &tools.Error{Class: tools.ErrorExecution, Err: err}
}

// ownFailure limits a tool's failure to the classes that a tool may return. The
// others describe what happens before it runs.
func ownFailure(own *tools.Error, err error) *tools.Error {
	fail := *own
	switch own.Class {
	case tools.ErrorPermissionDenied, tools.ErrorTimeout, tools.ErrorExecution, tools.ErrorCancelled:
	default:
		fail.Class = tools.ErrorExecution
	}
	fail.Err = err
	return &fail
}

// completeCall ends a call that ran to its end. diff is from projectUnasked.
func (r *round) completeCall(p *pending, out tools.Output, diff string, took time.Duration) {
	if !out.Success {
		diff = ""
	}
	content, cut := boundBlocks(out.Content, p.resultBytes(), r.d.opts.ResultCharacters)
	out.Content, out.Metadata = nil, r.recordableMetadata(p, out.Metadata)
	if len(content) == 0 {
		content = []tools.Block{{Text: "(no output)"}} // some providers refuse an empty result
	}
	p.result.Content, p.result.IsError = content, !out.Success
	p.result.Output, p.result.Duration = out, took
	done := Completed{
		CallID: p.call.ID, Name: p.call.Name, Success: out.Success, OutputBytes: blocksSize(content),
		Truncated: cut || out.Truncated, LatencyMS: took.Milliseconds(), FilesModified: append([]string{}, out.FilesModified...),
		Metadata: out.Metadata, Diff: diff,
	}
	if out.Command != "" {
		done.Command = &out.Command
	}
	_ = r.emit(done)
}

func (r *round) refuseCall(p *pending, fail *tools.Error) { r.failCall(p, fail, tools.Output{}, 0) }

func (r *round) failCall(p *pending, fail *tools.Error, out tools.Output, took time.Duration) {
	p.ended = true
	message, id := r.failureMessage(p, fail)
	partial := fail.Partial
	if partial == "" {
		partial = blocksText(out.Content)
	}
	partial = r.boundText(p, partial)
	out.Content, out.Metadata = nil, r.recordableMetadata(p, out.Metadata)
	text := message
	if len(out.FilesModified) > 0 {
		text += " Files changed before that: " + utf8text.Clip(strings.Join(out.FilesModified, ", "), maxMessageBytes) + "."
	}
	if partial != "" {
		text += "\nOutput until then:\n" + partial
	}
	p.result.IsError, p.result.Class = true, fail.Class
	text = utf8text.Repair(text)
	p.result.Content = []tools.Block{{Text: text}}
	if fail.Class == tools.ErrorUserDenied { // which no tool can return
		p.result.DenialReason = p.confirm.reason
	}
	p.result.Output, p.result.Duration = out, took
	_ = r.emit(Failed{
		CallID: p.call.ID, Name: p.call.Name, Class: fail.Class, Reason: fail.Reason, Message: message, ErrorID: id,
		LatencyMS: took.Milliseconds(), FilesModified: append([]string{}, out.FilesModified...), Partial: partial,
	})
}

const maxMessageBytes = 4 << 10

const maxMessagePartBytes = 400

// failureMessage returns what the model and the user see of a failure. If that is
// not visible, it is logged with an ID.
func (r *round) failureMessage(p *pending, fail *tools.Error) (message, id string) {
	if fail.Visible {
		return utf8text.Clip(utf8text.Repair(fail.Error()), maxMessageBytes), ""
	}
	id = "err_" + randomHex(8)
	fields := []zap.Field{
		zap.String("error_id", id), zap.String("call", p.call.ID), zap.String("tool", string(p.call.Name)),
		zap.String("class", string(fail.Class)), zap.String("message", fail.Message), zap.Error(fail.Err),
	}
	if crash, ok := errors.AsType[*panicError](fail.Err); ok {
		fields = append(fields, zap.ByteString("stack", crash.stack))
	}
	r.d.log.Error("tool failed", fields...)
	return "Tool execution failed (error id " + id + ").", id
}

// resultBytes returns the bound of a call's result: the tool's, or less if the model
// has less room left.
func (p *pending) resultBytes() int {
	limit := tools.DefaultResultBytes
	if p.tool != nil {
		limit = p.tool.Definition.ResultBytes
	}
	if p.call.ResultBytes > 0 {
		limit = min(limit, p.call.ResultBytes)
	}
	return limit
}

// boundText repairs and bounds one text of a call's result.
func (r *round) boundText(p *pending, s string) string {
	if s == "" {
		return ""
	}
	blocks, _ := boundBlocks([]tools.Block{{Text: s}}, p.resultBytes(), r.d.opts.ResultCharacters)
	return blocksText(blocks)
}

const maxMetadataBytes = 64 << 10

// recordableMetadata returns a tool's metadata, or nil if it can't be recorded: one
// tool's fault must not end the session.
func (r *round) recordableMetadata(p *pending, metadata map[string]any) map[string]any {
	if len(metadata) == 0 {
		return metadata
	}
	var text []byte
	var err error
	if broken := callGuarded(func() { text, err = json.Marshal(metadata) }); broken != nil {
		err = broken
	}
	if err == nil && len(text) > maxMetadataBytes {
		err = fmt.Errorf("%d bytes, at most %d are recorded", len(text), maxMetadataBytes)
	}
	if err != nil {
		r.warn(p, "the tool's metadata was left out: "+utf8text.Clip(utf8text.Repair(err.Error()), maxMessagePartBytes))
		return nil
	}
	return metadata
}

func (r *round) tamperedError(p *pending) *tools.Error {
	err := fmt.Errorf("input has the hash %s, %s was checked and shown", hashInput(p.call.Input), p.hash)
	return &tools.Error{Class: tools.ErrorExecution, Reason: "input_changed", Message: "The input was changed before the call ran.", Err: err}
}

// isIntact reports whether the call's input is still what was checked.
func (p *pending) isIntact() bool { return hashInput(p.call.Input) == p.hash }

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

func hashInput(canonical []byte) string {
	return fmt.Sprintf("%x", sha256.Sum256(canonical))
}
