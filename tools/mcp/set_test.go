package mcp

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func TestStartListCallClose(t *testing.T) {
	h := startHarness(t, map[string]serverFunc{
		"a": sdkServer(func(s *mcp.Server) { addTool(s, "one"); addTool(s, "two") }),
		"b": sdkServer(func(s *mcp.Server) { addTool(s, "one") }),
		"c": rawServer(nil),
	}, nil)
	if got, want := h.names(), []string{"a/one", "a/two", "b/one", "c/t"}; !slices.Equal(got, want) {
		t.Fatalf("registered tools = %q, want %q", got, want)
	}
	for name, want := range map[string]string{"a/two": "two", "b/one": "one", "c/t": "done"} {
		out, err := h.call(t.Context(), name, `{}`)
		if err != nil || !out.Success || outputText(out) != want {
			t.Errorf("call of %s = %q, success %t, %v; want %q", name, outputText(out), out.Success, err, want)
		}
	}
	started := eventsOf[ServerStarted](h)
	if len(started) != 3 {
		t.Fatalf("%d servers started, want 3", len(started))
	}
	for _, e := range started {
		if e.Server == "a" && (e.Title != "fake" || e.Version != "1.2.3" || e.Protocol != legacyProtocol || len(e.Tools) != 2 || len(e.Tools[0].Hash) != 64) {
			t.Errorf("start of a: %+v", e)
		}
	}
	if err := h.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if stopped := eventsOf[ServerStopped](h); len(stopped) != 3 || stopped[0].Err != nil {
		t.Errorf("stopped: %+v", stopped)
	}
	_, err := h.call(t.Context(), "a/one", `{}`)
	if err == nil || !errors.Is(err, ErrClosed) {
		t.Errorf("call after Close: %v, want ErrClosed", err)
	}
	if err := h.WaitServer(t.Context(), "a"); !errors.Is(err, ErrClosed) {
		t.Errorf("WaitServer after Close: %v", err)
	}
}

func TestNewSetRefuses(t *testing.T) {
	launch := startHarness(t, nil, nil).opts.Launch
	for _, test := range []struct {
		name    string
		servers []Server
		want    string
	}{
		{"no name", []Server{{Command: "x"}}, "invalid name"},
		{"double underscore", []Server{{Name: "a__b", Command: "x"}}, "invalid name"},
		{"slash", []Server{{Name: "a/b", Command: "x"}}, "invalid name"},
		{"twice", []Server{{Name: "a", Command: "x"}, {Name: "a", Command: "y"}}, "configured twice"},
		{"neither", []Server{{Name: "a"}}, "neither"},
		{"both", []Server{{Name: "a", Command: "x", URL: "https://x.example/"}}, "both"},
		{"timeout", []Server{{Name: "a", Command: "x", CallTimeout: -1}}, "negative"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := NewSet(Options{Servers: test.servers, Launch: launch})
			var config *ConfigError
			if !errors.As(err, &config) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("NewSet: %v, want a ConfigError with %q", err, test.want)
			}
		})
	}
}
