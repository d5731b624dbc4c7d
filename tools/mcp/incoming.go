package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/zap"
)

// Methods that a server may send. The SDK has no constants for them.
const (
	methodPing        = "ping"
	methodRoots       = "roots/list"
	methodSampling    = "sampling/createMessage"
	methodElicitation = "elicitation/create"

	notifyProgress         = "notifications/progress"
	notifyMessage          = "notifications/message"
	notifyToolsChanged     = "notifications/tools/list_changed"
	notifyPromptsChanged   = "notifications/prompts/list_changed"
	notifyResourcesChanged = "notifications/resources/list_changed"
	notifyResourceUpdated  = "notifications/resources/updated"
)

const maxLogBytes = 1 << 10

// filterIncoming is middleware for what a server sends. It refuses everything not
// listed before the SDK handles it: the SDK answers more than is wanted here, and
// some of its handlers trust the contents of notifications.
func (l *life) filterIncoming(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if !l.incoming.Allow() {
			l.cancel(&ProtocolError{"messages faster than the limit"})
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "too many messages"}
		}
		switch method {
		case methodPing, methodRoots, notifyPromptsChanged, notifyResourcesChanged, notifyResourceUpdated:
			return next(ctx, method, req)
		case notifyToolsChanged:
			result, err := next(ctx, method, req) // drops the cached list
			select {
			case l.changed <- struct{}{}:
			default: // a listing is due anyway
			}
			return result, err
		case notifyProgress:
			if params, ok := req.GetParams().(*mcp.ProgressNotificationParams); ok && params != nil {
				l.noteProgress(params)
			}
			return nil, nil
		case notifyMessage:
			l.logMessage(req.GetParams())
			return nil, nil
		}
		if _, isCall := incomingCalls[method]; !isCall {
			return nil, nil
		}
		l.refuseRequest(method)
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: fmt.Sprintf("%s is not supported", method)}
	}
}

// incomingCalls are the requests, as opposed to notifications, that the SDK knows.
var incomingCalls = map[string]struct{}{
	methodPing: {}, methodRoots: {}, methodSampling: {}, methodElicitation: {}, "completion/complete": {},
}

// refuseRequest reports a refused request, once per method.
func (l *life) refuseRequest(method string) {
	l.mu.Lock()
	seen := l.refused[method]
	l.refused[method] = true
	l.mu.Unlock()
	if !seen {
		l.server.reportEvent(RequestRefused{Server: l.server.cfg.Name, Method: method, Reason: "not allowed", Count: 1})
	}
}

func (l *life) logMessage(params mcp.Params) {
	check := l.server.serverLog().Check(zap.DebugLevel, "message of MCP server")
	if check == nil {
		return
	}
	encoded, _ := json.Marshal(params)
	check.Write(zap.String("text", l.server.redactText(oneLine(string(encoded), maxLogBytes))))
}

// progressGap is the minimum time between two reports of one call's progress.
const progressGap = 50 * time.Millisecond

type progress struct {
	extend func()
	show   func(text string)

	value float64
	shown time.Time
}

// noteProgress passes progress on to its call. Progress that doesn't advance is no
// sign of life.
func (l *life) noteProgress(params *mcp.ProgressNotificationParams) {
	token, _ := params.ProgressToken.(string)
	l.mu.Lock()
	p := l.progress[token]
	if p == nil || !(params.Progress > p.value) { // also false for NaN
		l.mu.Unlock()
		return
	}
	p.value = params.Progress
	now := time.Now()
	due := now.Sub(p.shown) >= progressGap
	if due {
		p.shown = now
	}
	l.mu.Unlock()
	p.extend()
	if due {
		p.show(progressText(params))
	}
}

func progressText(params *mcp.ProgressNotificationParams) string {
	text := fmt.Sprintf("%g", params.Progress)
	if params.Total > 0 {
		text += fmt.Sprintf("/%g", params.Total)
	}
	if params.Message != "" {
		text += " " + oneLine(params.Message, maxLogBytes)
	}
	return text + "\n"
}
