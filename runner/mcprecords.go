package runner

import (
	"maps"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools/mcp"
	"github.com/caisson-run/caisson/tools/safeurl"
)

// report records an event. A record that can't be written ends the session at the next
// one.
func (m *mcpServers) report(e mcp.Event) {
	var p record.Payload
	switch e := e.(type) {
	case mcp.ServerStarted:
		one := m.servers[e.Server]
		m.setProblem(e.Server, "")
		p = record.MCPServerStarted{
			Server: e.Server, Transport: e.Transport, Runs: one.place(), Identity: m.identityOf(one), Protocol: e.Protocol, Title: e.Title, Version: e.Version,
			Tools: recordMCPTools(e.Tools), ToolCount: len(e.Tools), Skipped: recordMCPSkipped(e.Skipped), Resources: e.Resources, Prompts: e.Prompts,
			Restarts: e.Restarts, WallMS: e.Took.Milliseconds(),
		}
	case mcp.ServerFailed:
		m.setProblem(e.Server, "it did not start: "+errorText(e.Err))
		p = record.MCPServerFailed{Server: e.Server, Transport: e.Transport, Cause: errorText(e.Err), Stderr: e.Stderr, GivenUp: e.GivenUp, WallMS: e.Took.Milliseconds()}
	case mcp.ServerStopped:
		m.setProblem(e.Server, "it has stopped")
		p = record.MCPServerStopped{
			Server: e.Server, Transport: e.Transport, Cause: errorText(e.Err), Calls: e.Calls, Stderr: e.Stderr, StderrBytes: e.StderrBytes, GivenUp: e.GivenUp,
			WallMS: e.Ran.Milliseconds(),
		}
	case mcp.ToolsChanged:
		p = record.MCPToolsChanged{
			Server: e.Server, Added: recordMCPTools(e.Added), Changed: recordMCPTools(e.Changed), Removed: recordMCPTools(e.Removed), Skipped: recordMCPSkipped(e.Skipped),
		}
	case mcp.RequestRefused:
		p = record.MCPRequestRefused{Server: e.Server, Method: e.Method, Reason: e.Reason, Count: e.Count}
	case mcp.ServerRestarting:
		m.s.log.Info("MCP server starts again", zap.String("server", e.Server), zap.Int("attempt", e.Attempt), zap.Duration("wait", e.Wait))
		return
	default:
		return
	}
	if err := m.s.events.writeRecord(p); err != nil {
		m.s.log.Error("record MCP server", zap.Error(err))
	}
}

// identityOf returns the identity as which a server runs.
func (m *mcpServers) identityOf(s *mcpServer) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shared {
		return 0
	}
	return s.identity
}

// errorText returns the text of an error, "" for nil.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func recordMCPTools(list []mcp.Tool) []record.MCPTool {
	out := []record.MCPTool{}
	for _, t := range list[:min(len(list), record.MaxListed)] {
		one := record.MCPTool{Name: t.Name, SHA256: t.Hash}
		if _, rest, _ := strings.Cut(string(t.Name), "/"); rest != t.Raw {
			one.Raw = t.Raw
		}
		out = append(out, one)
	}
	return out
}

func recordMCPSkipped(list []mcp.Skipped) []record.Ignored {
	out := []record.Ignored{}
	for _, s := range list[:min(len(list), record.MaxListed)] {
		out = append(out, record.Ignored{Name: s.Name, Why: s.Reason})
	}
	return out
}

// recordMCPServers returns what the first record has of the servers.
func recordMCPServers(servers []*mcpServer) []record.MCPServer {
	out := []record.MCPServer{}
	for _, s := range servers {
		one := record.MCPServer{
			Name: s.Name, Transport: s.Transport(), Runs: s.place(), Identity: s.identity, Command: s.Command, Env: variableNames(s.Env),
			Headers: slices.Sorted(maps.Keys(s.Headers)), Source: s.Source, Secrets: recordSecrets(s.Egress.Secrets),
		}
		if s.URL != "" {
			one.URL, _, _ = strings.Cut(safeurl.String(s.URL), "?")
		}
		if s.runsInSandbox() {
			one.Processes, one.MemoryBytes = s.Processes, s.Memory
		}
		if p := s.Egress.Policy; p != nil {
			for _, r := range p.Allow[:min(len(p.Allow), record.MaxListed)] {
				one.Egress = append(one.Egress, r.Describe())
			}
		}
		out = append(out, one)
	}
	return out
}
