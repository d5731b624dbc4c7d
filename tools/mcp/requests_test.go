package mcp

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
)

// TestServerRequests has a server that asks for things during a call.
func TestServerRequests(t *testing.T) {
	sampling := `{"messages":[{"role":"user","content":{"type":"text","text":"tell me a secret"}}],"maxTokens":10}`
	for _, test := range []struct {
		method, params string
		result         string // "" means an error
		refused        bool   // and reported
	}{
		{method: "ping", result: `{}`},
		{method: "roots/list", result: `{"roots":[{"name":"workspace","uri":"file:///workspace"}]}`},
		{method: "sampling/createMessage", params: sampling, refused: true},
		{method: "elicitation/create", params: `{"message":"Your password?","requestedSchema":{"type":"object","properties":{"p":{"type":"string"}}}}`, refused: true},
		{method: "elicitation/create", params: `{"message":"Allow the command rm -rf /? [y/n]","mode":"url","url":"https://x.example/","elicitationId":"1"}`, refused: true},
		{method: "completion/complete", params: `{"ref":{"type":"ref/prompt","name":"x"},"argument":{"name":"a","value":"b"}}`, refused: true},
		{method: "tools/call", params: `{"name":"t","arguments":{}}`},
		{method: "x/unknown"},
		{method: ""},
		{method: "notifications/progress", params: `{"progressToken":1,"progress":1}`}, // with an id
	} {
		t.Run(test.method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var answer message
				h := startHarness(t, map[string]serverFunc{"a": rawServer(func(c *rawConn, m message) error {
					request := fmt.Sprintf(`{"jsonrpc":"2.0","id":"req","method":%q`, test.method)
					if test.params != "" {
						request += `,"params":` + test.params
					}
					if err := c.send(request + "}"); err != nil {
						return err
					}
					var err error
					if answer, err = c.read(); err != nil {
						return err
					}
					return c.reply(m, doneResult)
				})}, nil)
				if out, err := h.call(t.Context(), "a/t", `{}`); err != nil || outputText(out) != "done" {
					t.Fatalf("call = %q, %v", outputText(out), err)
				}
				if string(answer.ID) != `"req"` || string(answer.Result) != test.result || (answer.Error == nil) != (test.result != "") {
					t.Errorf("answer: result %s, error %s", answer.Result, answer.Error)
				}
				var failure struct{ Code int }
				_ = json.Unmarshal(answer.Error, &failure)
				if test.refused && failure.Code != -32601 {
					t.Errorf("error %s, want method not found", answer.Error)
				}
				refused := eventsOf[RequestRefused](h)
				if got := len(refused) == 1 && refused[0].Method == test.method && refused[0].Count == 1; got != test.refused {
					t.Errorf("refused: %+v", refused)
				}
			})
		})
	}
}

// TestHandshake checks that only roots are announced to servers.
func TestHandshake(t *testing.T) {
	var handshake message
	startHarness(t, map[string]serverFunc{"a": rawServerWith(func(_ *rawConn, m message) (bool, error) {
		if m.Method == "initialize" {
			handshake = m
		}
		return false, nil
	})}, nil)
	for word, announced := range map[string]bool{"roots": true, "sampling": false, "elicitation": false} {
		if strings.Contains(string(handshake.Params), word) != announced {
			t.Errorf("handshake announces %s: %s", word, handshake.Params)
		}
	}
}

// TestStrangeNotifications are notifications that must not disturb a call. The SDK's
// own handler of the first panics when it gets no parameters.
func TestStrangeNotifications(t *testing.T) {
	for _, notification := range []string{
		`{"jsonrpc":"2.0","method":"notifications/elicitation/complete"}`,
		`{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":null}`,
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":null,"progress":1}}`,
		`{"jsonrpc":"2.0","method":"notifications/progress","params":null}`,
		`{"jsonrpc":"2.0","method":"notifications/message"}`,
		`{"jsonrpc":"2.0","method":"notifications/message","params":null}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled"}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":null}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":{}}}`,
		`{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":null}`,
		`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":null}`,
		`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":null}`,
		`{"jsonrpc":"2.0","method":"notifications/unknown","params":[1]}`,
		`{"jsonrpc":"2.0","method":"sampling/createMessage","params":{}}`, // without an id
		`{"jsonrpc":"2.0","method":"ping"}`,
	} {
		t.Run(notification, func(t *testing.T) {
			h := startHarness(t, map[string]serverFunc{"a": rawServer(func(c *rawConn, m message) error {
				if err := c.send(notification); err != nil {
					return err
				}
				return c.reply(m, doneResult)
			})}, nil)
			for range 2 {
				if out, err := h.call(t.Context(), "a/t", `{}`); err != nil || outputText(out) != "done" {
					t.Fatalf("call = %q, %v", outputText(out), err)
				}
			}
		})
	}
}

// TestInputRequired: with the newest protocol, a server asks in its result.
func TestInputRequired(t *testing.T) {
	h := startHarness(t, map[string]serverFunc{"a": rawServer(func(c *rawConn, m message) error {
		return c.reply(m, `{"resultType":"input_required","content":[],"inputRequests":{"1":{"method":"elicitation/create","params":{"message":"Your password?","requestedSchema":{"type":"object"}}}}}`)
	})}, nil)
	out, err := h.call(t.Context(), "a/t", `{}`)
	if err == nil || !strings.Contains(err.Error(), "not allowed") {
		t.Errorf("call = %q, %v", outputText(out), err)
	}
	if refused := eventsOf[RequestRefused](h); len(refused) != 1 || refused[0].Method != methodElicitation {
		t.Errorf("refused: %+v", refused)
	}
}
