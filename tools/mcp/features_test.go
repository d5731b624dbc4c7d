package mcp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/policy"
)

// featureServer has two resources, a template and a prompt.
func featureServer(s *mcp.Server) {
	addTool(s, "one")
	read := func(_ context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: req.Params.URI, Text: "text of " + req.Params.URI}}}, nil
	}
	s.AddResource(&mcp.Resource{URI: "test://a", Name: "a", Description: "evil\x1b[2J"}, read)
	s.AddResource(&mcp.Resource{URI: "test://b", Name: "b"}, read)
	s.AddResourceTemplate(&mcp.ResourceTemplate{URITemplate: "test://x/{n}", Name: "x"}, read)
	s.AddPrompt(&mcp.Prompt{Name: "greet", Arguments: []*mcp.PromptArgument{{Name: "who", Required: true}, {Name: "how"}}},
		func(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: "Greet " + req.Params.Arguments["who"]}}}}, nil
		})
}

func TestResourcesAndPrompts(t *testing.T) {
	h := startHarness(t, map[string]serverFunc{"f": sdkServer(featureServer), "plain": rawServer(nil)}, nil)
	if got, want := h.names(), []string{"f/one", "get_mcp_prompt", "list_mcp_resources", "plain/t", "read_mcp_resource"}; !slices.Equal(got, want) {
		t.Fatalf("tools %q, want %q", got, want)
	}
	list := "MCP server f:\n- resource test://a; a; evil\\x1b[2J;\n- resource test://b; b;\n- resource template test://x/{n}; x;\n- prompt greet; (who, how?);\n"
	for _, test := range []struct{ name, input, want string }{
		{"list_mcp_resources", `{"server":"f"}`, list},
		{"list_mcp_resources", `{}`, list},
		{"read_mcp_resource", `{"server":"f","uri":"test://b"}`, "[resource test://b]\ntext of test://b"},
		{"read_mcp_resource", `{"server":"f","uri":"test://x/7"}`, "[resource test://x/7]\ntext of test://x/7"},
		{"get_mcp_prompt", `{"server":"f","name":"greet","arguments":{"who":"Ann"}}`, "user:\nGreet Ann"},
	} {
		out, err := h.call(t.Context(), test.name, test.input)
		if err != nil || !out.Success || outputText(out) != test.want {
			t.Errorf("%s %s = %q, success %t, %v; want %q", test.name, test.input, outputText(out), out.Success, err, test.want)
		}
	}
	_, err := h.call(t.Context(), "read_mcp_resource", `{"server":"nope","uri":"x"}`)
	var failed *tools.Error
	if !errors.As(err, &failed) || failed.Class != tools.ErrorNotFound || !strings.Contains(failed.Message, "f, plain") {
		t.Errorf("unknown server: %v", err)
	}
	out, err := h.call(t.Context(), "read_mcp_resource", `{"server":"f","uri":"test://none"}`)
	if err != nil || out.Success {
		t.Errorf("unknown resource = %q, success %t, %v", outputText(out), out.Success, err)
	}
}

// TestFeatureToolsActAsServers: what a policy has for a server binds the reading of
// its resources.
func TestFeatureToolsActAsServers(t *testing.T) {
	h := startHarness(t, map[string]serverFunc{"f": sdkServer(featureServer), "g": rawServer(nil)}, nil)
	found, _ := h.registry.Find("read_mcp_resource")
	def := found.Definition
	if got := def.ActsAs([]byte(`{"server":"f","uri":"x"}`)); !slices.Equal(got, []tools.Name{"f/read_mcp_resource"}) {
		t.Errorf("ActsAs of one server: %q", got)
	}
	if got := def.ActsAs([]byte(`{}`)); !slices.Equal(got, []tools.Name{"f/read_mcp_resource", "g/read_mcp_resource"}) {
		t.Errorf("ActsAs of all servers: %q", got)
	}
	for mode, rule := range map[policy.Mode]map[string]policy.Mode{policy.ModeDeny: {"f/*": policy.ModeDeny}, policy.ModePrompt: nil, policy.ModeAuto: {"f__*": policy.ModeAuto}} {
		p, err := policy.Preset("sandboxed")
		if err != nil {
			t.Fatal(err)
		}
		p.Tools = rule
		if v := p.DecideCall(policy.DangerMatcher{}, def, "/workspace", []byte(`{"server":"f","uri":"x"}`)); v.Mode != mode {
			t.Errorf("with the rules %v the call has mode %s (%s), want %s", rule, v.Mode, v.Rule, mode)
		}
	}
	if def.Class != tools.ClassExecute || def.Runs != tools.PlaceSandbox {
		t.Errorf("class %s, place %s", def.Class, def.Runs)
	}
	outside := startHarness(t, map[string]serverFunc{"f": sdkServer(featureServer)}, func(o *Options) { o.Servers[0].OnHost = true })
	found, _ = outside.registry.Find("read_mcp_resource")
	if def := found.Definition; def.Class != tools.ClassNetwork || def.Runs != tools.PlaceHost {
		t.Errorf("on the host: class %s, place %s", def.Class, def.Runs)
	}
}

// TestEndlessResources has a server whose lists never end.
func TestEndlessResources(t *testing.T) {
	page := 0
	h := startHarness(t, map[string]serverFunc{"a": rawServerWith(func(c *rawConn, m message) (bool, error) {
		switch m.Method {
		case "initialize":
			return true, c.reply(m, `{"protocolVersion":"2025-11-25","capabilities":{"resources":{},"prompts":{}},"serverInfo":{"name":"x","version":"0"}}`)
		case "resources/list":
			page++
			return true, c.reply(m, fmt.Sprintf(`{"resources":[null,{"uri":"a://%d","name":"n"}],"nextCursor":"%d"}`, page, page))
		case "resources/templates/list":
			return true, c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no"}}`, m.ID))
		case "prompts/list":
			return true, c.reply(m, `{"prompts":[null,{"name":"p","arguments":[null]}]}`)
		}
		return false, nil
	})}, nil)
	out, err := h.call(t.Context(), "list_mcp_resources", `{"server":"a"}`)
	if text := outputText(out); err != nil || !strings.Contains(text, "a://100; n;\n- … the server's list has more than 100 pages;\n- prompt p;") {
		t.Errorf("list: %q, %v", text, err)
	}
}
