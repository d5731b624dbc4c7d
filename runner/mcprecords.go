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

// report records an event. If it can't be recorded, the next record ends the session.
func (m *mcpServers) report(e mcp.Event) {
	var p record.Payload
	switch e := e.(type) {
	case mcp.ServerStarted:
		m.setProblem(e.Server, "")
		e.Identity = m.identityOf(m.servers[e.Server])
		e.Tools, e.Skipped = record.NonNil(firstListed(e.Tools)), record.NonNil(firstListed(e.Skipped))
		p = record.MCPServerStarted(e)
	case mcp.ServerFailed:
		m.setProblem(e.Server, "it did not start: "+e.Cause)
		p = record.MCPServerFailed(e)
	case mcp.ServerStopped:
		m.setProblem(e.Server, "it has stopped")
		p = record.MCPServerStopped(e)
	case mcp.ToolsChanged:
		e.Added, e.Changed = record.NonNil(firstListed(e.Added)), record.NonNil(firstListed(e.Changed))
		e.Removed, e.Skipped = record.NonNil(firstListed(e.Removed)), record.NonNil(firstListed(e.Skipped))
		p = record.MCPToolsChanged(e)
	case mcp.RequestRefused:
		p = record.MCPRequestRefused(e)
	case mcp.ServerRestarting:
		m.s.log.Info("MCP server starts again", zap.String("server", e.Server), zap.Int("attempt", e.Attempt), zap.Duration("wait", e.Wait))
		return
	default:
		return
	}
	if err := m.s.events.writeRecord(p); err != nil {
		m.s.log.Error("record MCP server", zap.Error(err))
	}
	switch e := e.(type) {
	case mcp.ServerStarted:
		if e.Restarts == 0 { // no call is possible before report returns
			m.saveInstall(m.servers[e.Server])
		}
	case mcp.ServerFailed:
		m.dropInstall(m.servers[e.Server])
	}
}

func (m *mcpServers) identityOf(s *mcpServer) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shared {
		return 0
	}
	return s.identity
}

func recordMCPServers(servers []*mcpServer) []record.MCPServer {
	out := []record.MCPServer{}
	for _, s := range servers {
		one := record.MCPServer{
			Name: s.Name, Transport: s.Transport(), Runs: s.Place(), Identity: s.identity, Command: s.Command, Env: variableNames(s.Env),
			Headers: slices.Sorted(maps.Keys(s.Headers)), Source: s.Source, Secrets: recordSecrets(s.Egress.Secrets),
		}
		if s.URL != "" {
			one.URL, _, _ = strings.Cut(safeurl.String(s.URL), "?")
		}
		if s.InSandbox() {
			one.Processes, one.MemoryBytes = s.Processes, s.Memory
		}
		if p := s.Egress.Policy; p != nil {
			for _, r := range firstListed(p.Allow) {
				one.Egress = append(one.Egress, r.Describe())
			}
		}
		out = append(out, one)
	}
	return out
}
