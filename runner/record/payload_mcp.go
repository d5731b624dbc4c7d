package record

import (
	"fmt"

	"github.com/caisson-run/caisson/tools/mcp"
)

// MCPServer describes a configured server in [SessionCreated].
//
//	{"name":"github","transport":"stdio","runs":"sandbox","identity":1,"command":"npx","env":["GITHUB_TOKEN"],"egress":["https://api.github.com/"],"processes":64,"memory_bytes":268435456,"source":"/home/me/.config/caisson/config.yaml"}
type MCPServer struct {
	Name      string `json:"name"`
	Transport string `json:"transport"` // stdio, http or sse
	// Runs is sandbox, host, or remote if it is reached over HTTP.
	Runs string `json:"runs"`
	// Identity is the user index of its commands in the sandbox, absent for the
	// agent's.
	Identity int `json:"identity,omitempty"`
	// Command is a stdio server's program, without its arguments, which may be
	// secret. URL is another server's endpoint, without credentials and query.
	Command string `json:"command,omitempty"`
	URL     string `json:"url,omitempty"`
	// Env and Headers are the names of its variables and headers.
	Env     []string `json:"env,omitempty"`
	Headers []string `json:"headers,omitempty"`
	// Egress are its egress rules, at most [MaxListed]. Secrets are the keys
	// that it uses without having them.
	Egress  []string       `json:"egress,omitempty"`
	Secrets []EgressSecret `json:"secrets,omitempty"`
	// Processes and MemoryBytes are its budget in the sandbox.
	Processes   int    `json:"processes,omitempty"`
	MemoryBytes int64  `json:"memory_bytes,omitempty"`
	Source      string `json:"source,omitempty"`
}

// MCPServerStarted reports that a server is ready, also after a restart. Texts
// are the server's own, safe to show and bounded. Tools are at most [MaxListed]
// of ToolCount.
//
//	{"server":"github","transport":"stdio","runs":"sandbox","identity":1,"protocol":"2025-06-18","title":"GitHub","version":"1.0.0","tools":[{"name":"github/search","sha256":"…"}],"skipped":[],"wall_ms":412}
type MCPServerStarted mcp.ServerStarted

// MCPServerFailed reports that a server did not start. Its tools are not
// offered.
//
//	{"server":"github","transport":"stdio","cause":"the server ended: exit code 1","stderr":"Error: no token","given_up":true,"wall_ms":80}
type MCPServerFailed mcp.ServerFailed

// MCPServerStopped reports the end of a server that had started.
//
//	{"server":"github","transport":"stdio","cause":"the server ended: signal 9","calls":1,"stderr":"","stderr_bytes":0,"wall_ms":8123}
type MCPServerStopped mcp.ServerStopped

// MCPToolsChanged reports that a running server offers different tools. Each
// list has at most [MaxListed].
//
//	{"server":"github","added":[],"changed":[{"name":"github/search","sha256":"…"}],"removed":[],"skipped":[]}
type MCPToolsChanged mcp.ToolsChanged

// MCPRequestRefused reports refused requests of a server, such as for sampling
// or elicitation.
//
//	{"server":"github","method":"sampling/createMessage","reason":"not allowed","count":1}
type MCPRequestRefused mcp.RequestRefused

// Kind implements [Payload].
func (MCPServerStarted) Kind() Kind { return KindMCPServerStarted }

// Kind implements [Payload].
func (MCPServerFailed) Kind() Kind { return KindMCPServerFailed }

// Kind implements [Payload].
func (MCPServerStopped) Kind() Kind { return KindMCPServerStopped }

// Kind implements [Payload].
func (MCPToolsChanged) Kind() Kind { return KindMCPToolsChanged }

// Kind implements [Payload].
func (MCPRequestRefused) Kind() Kind { return KindMCPRequestRefused }

func (p MCPServerStarted) String() string {
	text := fmt.Sprintf("MCP server %s started with %d tools", p.Server, p.ToolCount)
	if n := len(p.Skipped); n > 0 {
		text += fmt.Sprintf(", %d skipped", n)
	}
	return text
}

func (p MCPServerFailed) String() string {
	return fmt.Sprintf("MCP server %s did not start: %s", p.Server, p.Cause)
}

func (p MCPServerStopped) String() string {
	if p.Cause == "" {
		return fmt.Sprintf("MCP server %s stopped", p.Server)
	}
	return fmt.Sprintf("MCP server %s stopped: %s", p.Server, p.Cause)
}

func (p MCPToolsChanged) String() string {
	return fmt.Sprintf("MCP server %s: %d tools added, %d changed, %d removed", p.Server, len(p.Added), len(p.Changed), len(p.Removed))
}

func (p MCPRequestRefused) String() string {
	return fmt.Sprintf("MCP server %s: %s refused: %s", p.Server, p.Method, p.Reason)
}
