package mcpserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/tools"
)

func (c *client) listTools(ctx context.Context) (*mcp.ListToolsResult, error) {
	s, err := c.openSession(ctx)
	if err != nil {
		c.server.log.Warn("no session", zap.String("user", c.user.Name), zap.Error(err))
		return nil, &jsonrpc.Error{Code: codeUnavailable, Message: c.server.opts.Describe(err)}
	}
	out := &mcp.ListToolsResult{Tools: []*mcp.Tool{}, Cacheable: mcp.Cacheable{CacheScope: "private"}}
	for _, def := range s.Runner.OfferedTools() {
		name, err := def.Name.LLM()
		if err != nil {
			continue // no registered tool has such a name
		}
		out.Tools = append(out.Tools, &mcp.Tool{
			Name: string(name), Description: def.Description, InputSchema: def.InputSchema, Annotations: annotateTool(def),
		})
	}
	return out, nil
}

// annotateTool returns the hints about a tool that follow from its class.
func annotateTool(def tools.Definition) *mcp.ToolAnnotations {
	a := &mcp.ToolAnnotations{}
	switch def.Class {
	case tools.ClassNone, tools.ClassRead:
		a.ReadOnlyHint, a.OpenWorldHint = true, new(false)
	case tools.ClassWrite:
		a.DestructiveHint, a.OpenWorldHint = new(true), new(false)
	default:
		a.DestructiveHint, a.OpenWorldHint = new(true), new(true)
	}
	return a
}

// callTool runs a call. A failure that the model may see is a result.
func (c *client) callTool(ctx context.Context, p *mcp.CallToolParamsRaw) (*mcp.CallToolResult, error) {
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	default:
		return newFailure(fmt.Sprintf("Too many calls are under way: at most %d at once. Wait for one to end.", cap(c.slots))), nil
	}
	s, err := c.openSession(ctx)
	if err != nil {
		c.server.log.Warn("no session", zap.String("user", c.user.Name), zap.Error(err))
		return newFailure(c.server.opts.Describe(err)), nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.ctx, func() { cancel(context.Cause(c.ctx)) })()
	call := runner.ToolCall{Name: tools.Name(p.Name), Input: p.Arguments}
	if token := p.GetProgressToken(); token != nil {
		progress := newProgress(s.Redact, func(elapsed float64, message string) error {
			return c.conn.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: elapsed, Message: message})
		})
		defer progress.stopSending()
		call.Output = progress.addOutput
	}
	result, err := s.Runner.CallTool(ctx, call)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, runner.ErrOver) {
			err = cmp.Or(context.Cause(c.ctx), cause)
		}
		return newFailure(c.server.opts.Describe(err)), nil
	}
	out := &mcp.CallToolResult{Content: []mcp.Content{}, IsError: result.IsError}
	for _, b := range result.Content {
		if b.Image != nil {
			out.Content = append(out.Content, &mcp.ImageContent{Data: b.Image, MIMEType: b.MediaType})
			continue
		}
		out.Content = append(out.Content, &mcp.TextContent{Text: s.Redact.Text(b.Text)})
	}
	if !slices.ContainsFunc(s.Runner.OfferedTools(), func(def tools.Definition) bool { return def.Name.Same(tools.Name(p.Name)) }) {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: textOf(out)}
	}
	return out, nil
}

// newFailure returns the result of a call that has none.
func newFailure(text string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}, IsError: true}
}

func textOf(r *mcp.CallToolResult) string {
	for _, c := range r.Content {
		if t, ok := c.(*mcp.TextContent); ok {
			return t.Text
		}
	}
	return ""
}
