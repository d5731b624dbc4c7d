package mcp

import (
	"context"
	"errors"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/mcp/oauth"
)

// Reasons of a failed call, for the record.
const (
	reasonServer  = "mcp_server_failed"
	reasonTimeout = "mcp_timeout"
	reasonChanged = "mcp_definition_changed"
	reasonAnswer  = "mcp_bad_answer"
	reasonInput   = "mcp_input_required"
)

// progressStream is the stream of [tools.Call].Delta for progress.
const progressStream = "progress"

// tool is one call of a server's tool.
type tool struct {
	server  *server
	offered offeredTool
}

func (t *tool) Definition() tools.Definition { return t.offered.def }

func (t *tool) Execute(ctx context.Context, call *tools.Call) (tools.Output, error) {
	return t.server.askServer(ctx, call.Delta, func(ctx context.Context, l *life, token string) (tools.Output, error) {
		// The approval is for this definition and no later one.
		if !t.server.offersNow(t.offered.Tool) {
			return tools.Output{}, &tools.Error{
				Class: tools.ErrorExecution, Reason: reasonChanged, Visible: true,
				Message: fmt.Sprintf("the server changed or removed %s; look it up again", t.offered.Name),
			}
		}
		params := &mcp.CallToolParams{Name: t.offered.raw, Arguments: call.Input}
		params.SetProgressToken(token)
		result, err := l.session.CallTool(ctx, params)
		if err != nil {
			return tools.Output{}, err
		}
		if len(result.InputRequests) > 0 {
			return tools.Output{}, l.refuseInput(result.InputRequests)
		}
		return callOutput(result), nil
	})
}

// codeNotSent is the SDK's error code for a request that its transport did not
// send.
const codeNotSent = -32005

// askServer waits for the server, runs do with a call's bounds, and turns its error
// into one for the model. delta gets progress.
func (s *server) askServer(ctx context.Context, delta func(stream, text string), do func(ctx context.Context, l *life, token string) (tools.Output, error)) (tools.Output, error) {
	l, err := s.waitReady(ctx)
	if err != nil {
		return tools.Output{}, s.callError(ctx, err)
	}
	callCtx, token, end := l.beginCall(ctx, func(text string) { delta(progressStream, s.oauth.Load().Redact(text)) })
	defer end()
	out, err := func() (_ tools.Output, err error) {
		defer s.recoverPanic(&err)
		return do(callCtx, l, token)
	}()
	var answered *jsonrpc.Error
	switch {
	case err == nil:
		return redactOutput(s.oauth.Load(), out), nil
	case ctx.Err() != nil:
		return tools.Output{}, s.callError(ctx, context.Cause(ctx))
	case errors.As(err, &answered) && answered.Code != codeNotSent:
		text := fmt.Sprintf("The server answered with error %d: %s", answered.Code, answered.Message)
		return redactOutput(s.oauth.Load(), tools.Output{Content: []tools.Block{{Text: text}}}), nil
	}
	return tools.Output{}, s.callError(ctx, l.explainError(callCtx, err))
}

// redactOutput removes the tokens that the server was sent from a result.
func redactOutput(h *oauth.Handler, out tools.Output) tools.Output {
	for i := range out.Content {
		out.Content[i].Text = h.Redact(out.Content[i].Text)
	}
	return out
}

func (s *server) callError(ctx context.Context, err error) error {
	var visible *tools.Error
	if errors.As(err, &visible) || ctx.Err() != nil {
		return err
	}
	failed := &tools.Error{Class: tools.ErrorExecution, Reason: reasonServer, Visible: true, Err: err}
	var timeout *TimeoutError
	var server *ServerError
	var protocol *ProtocolError
	var ended *EndedError
	switch {
	case errors.Is(err, oauth.ErrSignIn):
		failed.Message = fmt.Sprintf("the MCP server %s refuses the call: %s", s.cfg.Name, oauth.ErrSignIn)
	case errors.As(err, &timeout):
		failed.Class, failed.Reason = tools.ErrorTimeout, reasonTimeout
		failed.Message = fmt.Sprintf("the %s timed out after %s without progress", timeout.Op, timeout.After)
	case errors.As(err, &server) && server.GivenUp:
		failed.Message = fmt.Sprintf("the MCP server %s failed and is not started again: %s", s.cfg.Name, oneLine(server.Err.Error(), maxLogBytes))
	case errors.As(err, &server), errors.As(err, &protocol), errors.As(err, &ended), errors.Is(err, ErrClosed), errors.Is(err, mcp.ErrConnectionClosed):
		failed.Message = fmt.Sprintf("the MCP server %s ended during the call: %s. It may have done part of the work", s.cfg.Name, oneLine(err.Error(), maxLogBytes))
	default:
		failed.Reason = reasonAnswer
		failed.Message = fmt.Sprintf("the MCP server %s did not answer as the protocol requires: %s", s.cfg.Name, oneLine(err.Error(), maxLogBytes))
	}
	failed.Message = s.redactText(failed.Message)
	return failed
}

// refuseInput returns the error of a call that first wants input from the user or a
// model.
func (l *life) refuseInput(requests mcp.InputRequestMap) error {
	for _, request := range requests {
		method := methodSampling
		if _, ok := request.(*mcp.ElicitParams); ok {
			method = methodElicitation
		}
		l.refuseRequest(method)
	}
	return &tools.Error{
		Class: tools.ErrorPermissionDenied, Reason: reasonInput, Visible: true,
		Message: "the server asks for input of the user or of a model first, which is not allowed",
	}
}
