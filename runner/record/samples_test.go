package record

import (
	"encoding/json"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/overlay"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/mcp"
)

// samples returns one filled payload of each kind, for the golden files.
func samples() []Payload {
	att := sandbox.Attestation{
		Backend: "gvisor", Runtime: "runsc", RuntimeVersion: "release-20260905", Container: "caisson-ses_1",
		Image: "host", ImageDigest: "sha256:00", User: "10001:10001", GuestUser: "0:0", Capabilities: []string{},
		GuestCapabilities: []string{"CAP_SETUID"}, NoNewPrivileges: true, Seccomp: "filter", Network: "none",
		Localhost: []string{"127.0.0.1", "::1"}, RootReadOnly: true, Isolation: sandbox.IsolationNamespaces, Namespaces: []string{"pid"}, Workspace: "/home/me/p", WorkspaceMode: "bind",
		WorkspaceOwner: "1000:1000", IDMapped: true, Git: "ro", KillMethod: "gid",
		Egress:  &sandbox.AttestedEgress{Listening: []string{"0.0.0.0:61080"}},
		Service: &sandbox.AttestedService{Program: "python3", ArgsSHA256: "ef", Identity: 1, Healthy: true, Tests: 2, ReadyMS: 700},
		Limits:  sandbox.AttestedLimits{MemoryBytes: 2 << 30, PIDs: 256, MilliCPUs: 2000},
	}
	usage := limits.Usage{Rounds: 2, ToolCalls: 1, InputTokens: 100, OutputTokens: 20, CostMicroUSD: new(int64(1234))}
	ended := sandbox.ExitStatus{Code: -1, Signal: 9, TimedOut: true, Cancelled: true, OOMKilled: true}
	exceeded := &Limit{Kind: limits.KindMemory, Limit: 2 << 30, Used: 2<<30 + 1}
	model := loop.ModelInfo{Provider: "openai", Model: "gpt-5", BaseURL: "https://api.openai.com/v1"}
	call := loop.ModelCall{Round: 1, Profile: "main", Attempt: 2, Purpose: loop.PurposeSummary, Model: model}
	endedCall := EndedModelCall{
		ModelCall: call, LatencyMS: 812, Usage: usage, Finish: "stop", Class: loop.ModelServer, Status: 500, Message: "The provider failed.", ErrorID: "err_1",
	}
	created := SessionCreated{
		Version: "0.1.0", Task: "make the test pass", Workspace: "/home/me/p", WorkspaceMode: "bind", WorkspaceID: "17-1795170000000000000", Git: "ro",
		Backend: BackendChoice{Asked: "auto", Chosen: "gvisor", Why: "no local engine answered"},
		Image:   "host", Model: model, Profile: "main", Policy: "ci", OnPrompt: "deny", Client: "http:alice",
		Resources: NewResources(limits.DefaultResources()), Env: []string{"NODE_ENV"},
		Service: &Service{Program: "image", HealthCheck: "configured", AsAgent: true},
		Mounts:  []Mount{{From: "/data", To: "/data", ReadOnly: true}}, Caches: &Caches{Names: []string{"go"}, Use: "writable"},
		Egress: &Egress{
			Allow: []string{"tls://proxy.golang.org"}, Within: [][]string{{"tls://*.golang.org"}}, Deny: []string{"tls://bad.test"}, RulesSHA256: "ab",
			Private: []string{"db.lan"}, Unknown: "prompt", Capture: true, Proxy: "http://proxy.lan:3128",
			Presets: []string{"go"}, Secrets: []EgressSecret{{Name: "API_KEY", To: []string{"https://api.example.com/v1/"}, Header: "Authorization"}},
			AuthoritySHA256: "ab", Cache: "session", Lock: "/home/me/lock",
		},
		Budget:        NewBudget(limits.Budget{Rounds: new(int64(50)), WallTime: new(time.Minute)}),
		SessionBudget: NewBudget(limits.Budget{Tokens: new(int64(100_000))}),
		Tools:         []OfferedTool{{"shell", tools.ClassExecute, tools.PlaceSandbox}},
		Configuration: []Source{
			{Name: "built-in"}, {Name: "user", Path: "/home/me/.config/caisson/config.yaml", SHA256: "ab"},
		},
		Ignored:     []Ignored{{Name: ".caisson/config.yaml", Why: "the workspace is not trusted"}},
		FilesLoaded: []LoadedFile{{Path: "AGENTS.md", Bytes: 40_000, SHA256: "9f86", Truncated: true, Trust: "untrusted"}}, Skills: []Skill{{Name: "release", Path: ".agents/skills/release/SKILL.md", SHA256: "9f86", Bytes: 1200, Trust: "untrusted"}}, MCPServers: []MCPServer{{Name: "github", Transport: "stdio", Runs: "sandbox", Identity: 1, Command: "npx", Env: []string{"LOG"}, Egress: []string{"https://api.github.com/"}, Secrets: []EgressSecret{{Name: "TOKEN", To: []string{"https://api.github.com/"}, Header: "Authorization"}}, Processes: 64, MemoryBytes: 256 << 20, Source: "config.yaml"}, {Name: "remote", Transport: "http", Runs: "remote", URL: "https://mcp.example.com/", Headers: []string{"Authorization"}}}, MCPSkipped: []Ignored{{Name: "old", Why: "its name is invalid"}},
		Removed: []sandbox.Orphan{{Kind: "container", Name: "caisson-ses_0", Owner: "pid 12"}},
		Parent:  &Parent{Session: "ses_01JD0000000000000000000001", Turn: "trn_1", Seq: 7, SHA256: "ab12"},
	}
	return []Payload{
		created,
		TurnStarted{Client: "http:alice", Budget: Budget{Rounds: new(int64(50)), ToolCalls: new(int64(200)), Tokens: new(int64(2_000_000)), CostMicroUSD: new(int64(5_000_000)), WallTimeMS: new(int64(600_000))}, Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
		Message{Role: loop.RoleAssistant, Thread: 2, Blocks: []loop.Block{
			{Text: &loop.Text{Text: "I run <the test> & see."}},
			{ToolUse: &loop.ToolUse{ID: "tu_1", ProviderID: "call_1", Name: "shell", Input: json.RawMessage(`{"command":"sh test.sh"}`)}},
			{ToolResult: &loop.ToolResult{ToolUseID: "tu_0", Content: []tools.Block{{Text: "exit code 1"}}, IsError: true}},
			{Thinking: &loop.Thinking{Text: "hm", Signature: "s"}},
		}, Client: "http:alice"},
		ModelCallStarted{ModelCall: call, Tools: 8},
		ModelCallCompleted{ModelCall: call, LatencyMS: 812, FirstDeltaMS: new(int64(120)), Usage: usage, Finish: "tool_calls", ToolCalls: 1},
		ModelCallFailed{
			ModelCall: call, Class: loop.ModelRateLimit, Status: 429, Message: "the provider refuses", ErrorID: "err_1",
			Retry: &loop.Retry{Number: 1, Most: 2, DelayMS: 500},
		},
		ContextShortened{Results: 3, Bytes: 41_000},
		ContextCompacted{
			Summary: loop.Summary{Text: "The tests of <a> fail.", Messages: 240, Kept: []int{0, 1}}, Profile: "main", Model: call.Model, Usage: usage,
			BytesBefore: 310_221, BytesAfter: 4210,
		},
		ContextCompactionFailed{Reason: loop.CompactionTooLong, Profile: "main"},
		SandboxStarted{Attestation: att, StartMS: 140},
		SandboxLost{Container: "caisson-ses_1", Cause: "out of memory", Limit: exceeded, Restarting: true, Workspace: "files of the workspace are back to what they were before the last command or change of files"},
		SandboxRestarted{Restart: 1, Attestation: att, StartMS: 131},
		UserCommandStarted{ExecID: "exe_1", Argv: []string{"sh", "-c", "ls"}, Dir: "/workspace/sub", Env: []string{"TZ"}, Terminal: &sandbox.TerminalSize{Rows: 24, Columns: 80}, PID: 4712, Client: "uid:1000"},
		UserCommandEnded{
			ExecID: "exe_1", ExitStatus: ended, Shortage: sandbox.Shortage{PIDsLimitHit: true, Full: []string{"/tmp"}}, Error: "lost", Stdout: UserStream{Bytes: 3, SHA256: "ab"},
			Stderr: UserStream{SHA256: "cd"}, WallMS: 7, CPUMS: 2, Kill: sandbox.KillReport{Method: "gid", Terminated: 1, Killed: 1},
			Recording: &Recording{Path: "spill/command-0001-terminal.cast", Bytes: 9, SHA256: "ef", Truncated: true},
		},
		BackgroundEnded{
			CallID: "tu_1", Handle: "background-1", EndedBy: "shell_kill", ExitStatus: ended, Shortage: sandbox.Shortage{PIDsLimitHit: true, Full: []string{"/tmp"}}, Error: "lost",
			Stdout: UserStream{Bytes: 3, SHA256: "ab"}, Stderr: UserStream{SHA256: "cd"}, WallMS: 7, CPUMS: 2,
			Kill: sandbox.KillReport{Method: "gid", Terminated: 1}, Recording: &Recording{Path: "spill/command-0001-terminal.cast", Bytes: 9, SHA256: "ef"},
		},
		MCPServerStarted{
			Server: "github", Transport: "stdio", Runs: "sandbox", Identity: 1, Protocol: "2025-06-18", Title: "GitHub", Version: "1.0.0",
			Tools: []mcp.Tool{{Name: "github/search_code", Raw: "search.code", Hash: "ab"}}, ToolCount: 1, Skipped: []mcp.Skipped{{Name: "bad name", Why: "its name is invalid"}},
			Resources: true, Prompts: true, Restarts: 1, WallMS: 412,
		},
		MCPServerFailed{Server: "github", Transport: "stdio", Cause: "exit code 1", Stderr: "no token", GivenUp: true, WallMS: 80},
		MCPServerStopped{Server: "github", Transport: "stdio", Cause: "signal 9", Calls: 1, Stderr: "killed", StderrBytes: 6, GivenUp: true, WallMS: 8123},
		MCPToolsChanged{
			Server: "github", Added: []mcp.Tool{}, Changed: []mcp.Tool{{Name: "github/search_code", Hash: "cd"}}, Removed: []mcp.Tool{{Name: "github/old", Hash: "ef"}},
			Skipped: []mcp.Skipped{},
		},
		MCPRequestRefused{Server: "github", Method: "sampling/createMessage", Reason: "not allowed", Count: 2},
		ConfirmationRequested{
			CallID: "tu_1", Name: "shell", Class: tools.ClassExecute, ID: "00ff", Summary: "rm -r build", CommandLine: new("rm -r build"),
			InputHash: "cd", Input: `{"command":"rm -r build"}`, Projected: []string{}, Diff: "-a\n+b\n", ExpiresAt: "2026-11-20T10:05:00Z",
			Runs: tools.PlaceSandbox, Dangerous: "rm -r build", Notices: []string{"60 blanks in a row"}, Covers: []string{"run.sh"}, Changed: true,
			Scopes: []approval.Scope{approval.ScopeOnce, approval.ScopeAlways}, Phrase: "rm -r build",
			Definition: "ef", Redefined: true,
		},
		ConfirmationResolved{CallID: "tu_1", RequestID: "00ff", Decision: approval.DecisionDeny, Scope: approval.ScopeOnce, By: "user", Client: "terminal", Reason: "use make test"},
		ConfirmationAttempted{
			RequestID: "00ff", CallID: "tu_1", Decision: approval.DecisionDeny, Scope: approval.ScopeSession, By: "http",
			Outcome: approval.AttemptResolved, Recorded: approval.DecisionAllow, RecordedBy: "user", Omitted: 3,
		},
		ToolActivated{CallID: "tu_1", Name: "github/search", Definition: "ef", By: "search"},
		ToolCalled{CallID: "tu_1", Name: "shell", InputHash: "cd", InputBytes: 24, Class: tools.ClassExecute, Rule: "sandboxed execute", Summary: "sh test.sh"},
		BridgeModelCall{
			Call: 3, Command: 1, Protocol: "anthropic", Endpoint: "messages", Asked: "claude-opus-5", EndedModelCall: endedCall,
			Estimated: true, Withheld: []string{"web_search_20260209"}, Sent: 4100, Received: 812,
		},
		WorkerModelCall{CallID: "tu_1", Worker: "critic careful", EndedModelCall: endedCall},
		WorkerToolCall{CallID: "tu_1", Worker: "critic careful", Hop: 1, Name: "fetch", Status: "ok", InnerID: "tu_2", Summary: "https://example.com/", InputHash: "cd"},
		WorkerInputInvalid{CallID: "tu_1", Worker: "critic careful", Hop: 2, Name: "fetch", Error: "/url: missing"},
		WorkerCostWarning{CallID: "tu_1", Worker: "critic careful", CapUSD: 0.1, ObservedUSD: 0.125},
		NetworkDenied{CallID: "tu_1", Server: "github", URL: "http://169.254.169.254/latest", Host: "169.254.169.254:80", Addr: "169.254.169.254", Reason: "the address is link-local", Redirect: true, Way: "connect", Command: 2, Rule: "tls://*.example.com", Method: "POST", Count: 3},
		NetworkOpened{CallID: "tu_1", Server: "github", Conn: 3, Command: 2, Way: "connect", Host: "proxy.golang.org:443", Rule: "tls://proxy.golang.org", By: "rule"},
		NetworkClosed{
			CallID: "tu_1", Server: "github", Conn: 3, Host: "proxy.golang.org:443", Addr: "142.250.1.1", SNI: "proxy.golang.org", Sent: 812, Received: 40211,
			Requests: 2, WallMS: 310, Ending: "done",
		},
		ToolCompleted{
			CallID: "tu_1", Name: "shell", OutputBytes: 40, Truncated: true, LatencyMS: 9, FilesModified: []string{},
			Command: new("sh test.sh"), Metadata: map[string]any{"exit_code": 1}, Diff: "--- a/f\n+++ b/f\n",
		},
		ToolFailed{
			CallID: "tu_1", Name: "shell", Class: tools.ErrorCancelled, Reason: "interrupted", Message: "cancelled", ErrorID: "err_2",
			LatencyMS: 5000, FilesModified: []string{"a"}, Partial: "half",
		},
		ToolInputInvalid{CallID: "tu_1", Name: "shell", Errors: []string{"/command: missing"}},
		BudgetWarning{What: limits.KindTokens, Limit: 1000, Used: 810, Period: limits.PeriodDay, Profile: "main"},
		Warning{CallID: "tu_1", Message: "left-to-right \u202e mark, C1 \u009b, tag \U000e0041", Requested: true},
		TurnCompleted{Reason: loop.StopAnswered, Limit: &Limit{Kind: limits.KindTokens, Limit: 100, Used: 120}, ModelCalls: 2, ToolCalls: 1, Usage: usage, WallMS: 4000},
		TurnCancelled{Reason: "interrupted", By: "user", Client: "http:alice", ModelCalls: 1, ToolCalls: 1, Usage: usage, WallMS: 4000},
		Verification{
			Passed: false, Command: "make test", Session: "ses_01JD0000000000000000000003", ExitStatus: ended,
			Output: "FAIL", OutputOmitted: 7, WallMS: 4100, Error: "the sandbox was lost",
		},
		SessionResumed{SessionCreated: created, Unfinished: "trn_1", Interrupted: []string{"tu_1"}, TornBytes: 17, Changes: "kept"},
		SessionEnded{
			Reason: loop.StopLimit, ExitStatus: 53, Answer: "The test passes now.", Client: "http:alice", Truncated: true, Limit: exceeded,
			Problem: &Problem{Cause: "the limit on memory was reached", Hint: "give more"},
			Turns:   2, Usage: usage, CostUSD: "0.001234", WallMS: 4212, Attestation: &att, Restarts: 1, PatchSHA256: "ab",
			Changed:        []Changed{{Path: "Makefile", Change: "modified", Insertions: 1, Deletions: 2, HasDiff: true, Size: 12}},
			ChangedOmitted: 1, ChangedCount: ChangeCount{Files: 2, Insertions: 1, Deletions: 2, Uncounted: 1}, Incomplete: true,
			HostExecuted: []HostExecuted{{Path: "Makefile", By: "make"}, {Path: "l", By: "whatever follows it", Target: "/etc/passwd"}}, HostExecutedOmitted: 1,
			Quarantined: []Quarantined{{Path: "sub/.git", To: "sub/.git.quarantined-ses_1"}},
			Cleared:     []Cleared{{Path: "bin/helper", SetUID: true, SetGID: true, Capabilities: true, Why: "operation not permitted"}},
			Overlay: &OverlayResult{
				State: overlay.Kept, Changes: 3, Applied: 1, Conflicts: []PathNote{{Path: "a", Why: "it was changed"}},
				Omitted: 2, LeftOut: []PathNote{{Path: ".git/config", Why: "git obeys it"}}, Failed: []PathNote{{Path: "b", Why: "no space"}},
			},
			Denials:      []Denial{{CallID: "tu_1", Name: "shell", Class: tools.ErrorPermissionDenied, Reason: "no_approver"}},
			Verification: &Verification{Passed: true, Command: "make test", WallMS: 4100}, AnswerProblems: []string{"/: got string, want object"},
			Differences: []Difference{{Turn: 1, Call: 2, Tool: "shell", What: "exit_code", Want: "0", Got: "1"}},
			Left:        []string{"mount /x: busy"}, ProcessesKilled: 2,
			Network: &NetworkTotals{Connections: 3, Denied: 2, Sent: 812, Received: 40211, Requests: 2, Cached: 1, Unrecorded: 4, RequestsSHA256: "ab"},
			Bridge:  &BridgeTotals{Calls: 4, Answered: 1, Failed: 1, Refused: 2, Unrecorded: 1, BodiesSHA256: "ab", BodiesOmitted: 1},
		},
	}
}
