package config

import (
	"reflect"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/server"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/dispatch"
	"github.com/caisson-run/caisson/tools/egress/rule"
	"github.com/caisson-run/caisson/tools/fetch"
	"github.com/caisson-run/caisson/tools/shell"
)

// File has the settings of one layer: of a configuration file, a profile, the
// environment or the command line. A nil field is not set.
//
// To add a setting:
//
//  1. Add a field with its tags below: to [Bounds], [Limits], [Resources] or
//     [FetchLimits] if a trusted workspace and an administrator may make it
//     stricter, otherwise to File or another of its structs.
//  2. Use it, through a method of its struct or of [Config] if its value needs a check.
//  3. Run go test ./cmd/caisson/internal/config -update, which writes
//     docs/settings.md, and go test ./cmd/caisson -run CommandPages -update-pages,
//     which writes docs/commands.
//
// The tags define everything else: files, profiles, flags, environment variables, help,
// shell completion, caisson config show, the JSON Schemas and the reference.
//
//	yaml     the key in files
//	doc      a description; required
//	flag     the flag; the environment variable is CAISSON_ and this in capitals
//	         with underscores
//	letter   the flag's short form, as in docker run
//	value    the kind of value in help, such as SIZE; none for a switch
//	group    the group of the flag in help
//	default  the built-in value, as in a file; builtinFile has libraries' defaults
//	shown    the built-in value in documents and help, if it varies
//	enum     the allowed words, checked when the layers are loaded
//	words    the allowed words, checked where the setting is used
//	tighten  in Bounds: the allowed values, the strictest first
//	each     for a map: what an entry is
//	names    for a map: the allowed names
type File struct {
	Model          *string          `yaml:"model" flag:"model" value:"MODEL" group:"Model" doc:"name of one of models, or provider/model: openai/NAME, anthropic/NAME, ollama/NAME, replay/FILE; by default openai/gpt-6.2-sol with OPENAI_API_KEY, else anthropic/claude-sonnet-5-5 with ANTHROPIC_API_KEY"`
	Models         map[string]Model `yaml:"models" doc:"models, by name; selecting one selects all its settings" each:"one model"`
	Backend        *string          `yaml:"backend" flag:"backend" value:"NAME" group:"Sandbox" default:"auto" enum:"auto docker gvisor runc" doc:"where commands run: auto, docker, gvisor or runc"`
	Image          *string          `yaml:"image" flag:"image" value:"REF" group:"Sandbox" default:"host" doc:"root filesystem: host, an image's name, rootfs:DIR, oci-layout:DIR, docker-archive:FILE or build:DIR"`
	WritableRoot   *bool            `yaml:"writable_root" flag:"writable-root" group:"Files and user" default:"false" doc:"let commands write to the files of the image, in a layer that is removed with the sandbox"`
	Workdir        *string          `yaml:"workdir" flag:"workdir" letter:"w" value:"PATH" group:"Files and user" default:"/workspace" doc:"where the workspace is mounted in the container: a path, or image for the image's own WORKDIR"`
	Bounds         `yaml:",inline"`
	CopyBytes      *Size             `yaml:"copy_bytes" group:"Files and user" default:"256MiB" doc:"largest workspace that mode copy sends; the copy is in memory, and may grow to four times this size"`
	CopyEntries    *Count            `yaml:"copy_entries" group:"Files and user" default:"100000" doc:"largest number of files and directories that mode copy sends"`
	CopyCheckpoint *string           `yaml:"copy_checkpoint" flag:"copy-checkpoint" value:"WHEN" group:"Files and user" default:"turn" enum:"turn never" doc:"when mode copy saves changes before the end: turn, while the model is asked, so that a sandbox that replaces a lost one has them; or never"`
	Service        Service           `yaml:"service" doc:"a long-running program in the sandbox, such as the server that an image starts"`
	KeepChanges    *Duration         `yaml:"keep_changes" flag:"keep-changes" value:"TIME" group:"Output" default:"336h" doc:"how long changes of overlay runs wait to be applied, such as 336h"`
	KeepSessions   *Duration         `yaml:"keep_sessions" flag:"keep-sessions" value:"TIME" group:"Output" default:"2160h" doc:"how long complete records are kept, such as 2160h; after that, only audit records are kept"`
	Env            map[string]string `yaml:"env" doc:"variables for commands in the sandbox, by name" each:"value of a variable"`
	EnvFrom        Names             `yaml:"env_from" flag:"env-from" value:"NAMES" group:"Sandbox" doc:"variables of caisson's own environment that commands also get; their values are kept out of records; separate them with commas in the flag"`
	// MoreEnvFrom are names that the command line adds to EnvFrom.
	MoreEnvFrom           Names            `yaml:"-"`
	Mounts                Mounts           `yaml:"mounts" flag:"mount" letter:"v" value:"MOUNTS" group:"Files and user" doc:"directories of this machine that commands see; in the flag, FROM:TO or FROM:TO:ro, separated by commas"`
	Caches                Names            `yaml:"caches" flag:"cache" value:"NAMES" group:"Files and user" doc:"caches that the sessions of a workspace share: go, npm, pip, cargo, maven, apt, or a directory such as ~/.gradle; separate them with commas in the flag"`
	KeepCaches            *Duration        `yaml:"keep_caches" flag:"keep-caches" value:"TIME" group:"Output" default:"720h" doc:"how long unused caches are kept, such as 720h"`
	Submounts             []string         `yaml:"submounts" doc:"accepted mounts inside the workspace"`
	Policy                *Policy          `yaml:"policy" doc:"which calls run, prompt or are refused"`
	Concurrency           *Count           `yaml:"concurrency" flag:"concurrency" value:"N" group:"Limits" doc:"tool calls that run at once, at most 64"`
	ConfirmTimeout        *Duration        `yaml:"confirm_timeout" flag:"confirm-timeout" value:"TIME" group:"Policy" doc:"how long a confirmation waits for an answer"`
	Grace                 *Duration        `yaml:"grace" flag:"grace" value:"TIME" group:"Sandbox" doc:"time between SIGTERM and SIGKILL when a command is cancelled"`
	Fetch                 Fetch            `yaml:"fetch" doc:"what the fetch tool may reach; without allow the tool is off"`
	Agents                map[string]Agent `yaml:"agents" doc:"other people's agents that run in the sandbox, by name; built in are claude, codex, gemini, opencode and qwen" each:"one agent; for a built-in one, the keys to change"`
	Workers               Workers          `yaml:"workers" doc:"models that the model may ask with the tools confer and coordinate; without models the tools are off"`
	Egress                Egress           `yaml:"egress" doc:"what commands may reach; without a rule they have no network"`
	Docker                Docker           `yaml:"docker" doc:"the Docker engine"`
	Stream                *bool            `yaml:"stream" flag:"stream" group:"Model" default:"true" doc:"stream the model's answer"`
	CallerOwnsFiles       *bool            `yaml:"caller_owns_files" flag:"caller-owns-files" group:"Files and user" default:"false" doc:"let new files belong to the user who runs caisson"`
	AcceptSystemWorkspace *bool            `yaml:"accept_system_workspace" flag:"accept-system-workspace" group:"Task" default:"false" doc:"let a directory of the system, such as /etc or /home, be the workspace"`
	HostImage             HostImage        `yaml:"host_image" doc:"what image host contains in addition to the machine's /usr"`
	Images                Images           `yaml:"images" doc:"how images are fetched"`
	Programs              Programs         `yaml:"programs" doc:"absolute paths of programs that are neither beside the executable nor on PATH"`
	Chat                  Chat             `yaml:"chat" doc:"how caisson chat behaves"`
	Serve                 Serve            `yaml:"serve" doc:"settings of caisson serve; its sessions use the rest of the file"`
	Telemetry             Telemetry        `yaml:"telemetry" doc:"export of spans, metrics and audit records by OTLP; OpenTelemetry's own variables override it"`
	MCP                   MCPServers       `yaml:"mcpServers" doc:"MCP servers whose tools the model can load, by name; their tools prompt until policy.tools names them" each:"one server"`
	MCPUse                Names            `yaml:"mcp_use" flag:"mcp" value:"NAMES" group:"Task" doc:"MCP servers that a session uses, or none; the default is all; separate them with commas in the flag"`
	MCPEnv                Names            `yaml:"mcp_env" doc:"variables of caisson's own environment that the .mcp.json of a trusted workspace may refer to"`
	Tools                 Tools            `yaml:"tools" doc:"commands to offer to the model as tools, by name; they run in the sandbox" each:"one tool"`
	Instructions          *string          `yaml:"instructions" doc:"the operator's instructions to the model, in addition to AGENTS.md beside the configuration"`
	InstructionsFile      *string          `yaml:"instructions_file" flag:"instructions" value:"FILE" group:"Task" doc:"file with more of the operator's instructions"`
	SkillDirs             []string         `yaml:"skill_dirs" doc:"more directories with your skills, in addition to skills in the configuration directory; a path begins with / or ~/"`
	MemoryTools           *bool            `yaml:"memory_tools" doc:"offer memory_add, memory_replace and memory_consolidate, and show their notes when a session starts"`

	// Profiles are named sets of these settings. Workspaces are settings of a
	// workspace, by its path. They can't be nested.
	Profiles   map[string]File `yaml:"profiles" doc:"named sets of these settings"`
	Workspaces map[string]File `yaml:"workspaces" doc:"settings for one workspace, by its path, which begins with / or ~/; they override a profile"`
}

// Workers are the models that the model may ask.
type Workers struct {
	Models      []string `yaml:"models" doc:"names of models, or provider/model, that the model may ask; the session pays for them, and they count toward its limits"`
	Tools       []string `yaml:"tools" words:"fetch verify" doc:"tools that these models may call if the model asks for it: fetch, as for the session, and verify, on texts"`
	CostCap     *Dollars `yaml:"cost_cap_usd" doc:"US dollars that one of these models with tools may cost in a call"`
	CostCapMode *string  `yaml:"cost_cap_mode" default:"warn" enum:"warn enforce off" doc:"above the cap: warn, enforce (no further calls of its tools) or off"`
}

// Agent is a program with its own model loop. It runs in the sandbox and asks models
// through Caisson. It comes from NPM, Dir or the image. The words {{instruction}},
// {{model}}, {{base_url}}, {{workspace}} and {{home}} in Command, Interactive, Stdin, Env
// and Files stand for values of the run.
type Agent struct {
	NPM         *string           `yaml:"npm" doc:"its npm package with a version, such as opencode-ai@1.18.33, for caisson agents install"`
	Dir         *string           `yaml:"dir" doc:"directory of this machine with the program, which is mounted read-only at /opt/agents/NAME; its path begins with / or ~/"`
	Image       *bool             `yaml:"image" doc:"the program is in the image"`
	Command     []string          `yaml:"command" doc:"the program and its arguments; the program is a name (on PATH in the image, or of the npm package's program), or a path below dir; {{instruction}} stands for the task"`
	Interactive []string          `yaml:"interactive" doc:"the program and its arguments on a terminal, without a task"`
	Stdin       *string           `yaml:"stdin" doc:"text of its standard input in a run with a task, such as {{instruction}}; by default it is empty"`
	Env         map[string]string `yaml:"env" doc:"its variables, by name" each:"value of a variable"`
	Files       map[string]string `yaml:"files" doc:"files to write before it starts, by path in its home directory; values in .json and .toml files are escaped" each:"content of a file"`
	Protocol    *string           `yaml:"protocol" words:"anthropic responses chat gemini" doc:"API that it asks models with: anthropic (Messages), responses or chat (OpenAI's), or gemini"`
	Models      map[string]string `yaml:"models" doc:"models, by the name that it asks for; * is any other name; by default all names are the configured model" each:"name of one of models, or provider/model"`
	WebSearch   *bool             `yaml:"web_search" doc:"let it use the provider's own web search, which no rule of egress bounds"`
	QuietHosts  []string          `yaml:"quiet_hosts" doc:"hosts that it tries to reach and does not need; Caisson refuses them without a line"`
	Caches      Names             `yaml:"caches" doc:"directories to keep for the next session on the workspace, written like caches"`
	Timeout     *Duration         `yaml:"timeout" doc:"longest time of one run with a task; the default is 1h"`
}

// Chat has the settings of caisson chat.
type Chat struct {
	Notify *string `yaml:"notify" default:"osc9" enum:"off bell osc9" doc:"how a chat asks for attention when a question waits, or when a long turn ends in a terminal without focus: off, bell, or osc9 (a bell and a notification of the terminal)"`
}

// Bounds are the settings that a trusted workspace's own file and an administrator's
// requirements can make stricter: they lower numbers, and replace words and switches by
// values further left in the tag tighten.
type Bounds struct {
	Git  *string `yaml:"git" flag:"git" value:"MODE" group:"Sandbox" default:"ro" enum:"ro commit" tighten:"ro commit" doc:"what commands may do to .git: ro or commit"`
	User *string `yaml:"user" flag:"user" letter:"u" value:"WHO" group:"Files and user" default:"owner" enum:"owner image root" tighten:"owner image root" doc:"user of commands: owner, without privileges; image, the image's USER; or root, only in the container (gvisor, runc, docker with runsc)"`
	// Mode is "bind" unless a layer or the requirements set it.
	Mode *string `yaml:"mode" flag:"mode" value:"MODE" group:"Files and user" enum:"bind overlay copy" tighten:"copy overlay bind" doc:"how commands get the workspace: bind, which changes it directly; overlay, which leaves it unchanged; or copy, which sends it, for example to an engine on another machine"`
	// Isolation is "auto" unless a layer or the requirements set it.
	Isolation *string `yaml:"isolation" flag:"isolation" value:"HOW" group:"Sandbox" shown:"auto" enum:"auto namespaces process" tighten:"namespaces auto process" doc:"how the sandbox is separated from this machine: namespaces; process, which is gvisor without namespaces and works in any container; or auto, the strongest that works"`
	// CacheUse is "writable" unless a layer or the requirements set it.
	CacheUse         *string   `yaml:"cache_use" flag:"cache-use" value:"HOW" group:"Files and user" shown:"writable" enum:"writable frozen none" tighten:"none frozen writable" doc:"how commands use the caches: writable, frozen (what they write is dropped) or none"`
	OnPrompt         *string   `yaml:"on_prompt" flag:"on-prompt" value:"WHAT" group:"Policy" default:"deny" enum:"deny fail allow" tighten:"deny fail allow" doc:"what to do about a prompt if nobody can be asked: deny, fail or allow"`
	RefuseLost       *bool     `yaml:"refuse_lost" flag:"refuse-lost" group:"Sandbox" default:"false" tighten:"true false" doc:"don't run if the sandbox lacks a protection"`
	InstructionFiles *bool     `yaml:"instruction_files" flag:"instruction-files" group:"Task" default:"true" tighten:"false true" doc:"send the workspace's AGENTS.md to the model: as the operator's instructions if this version is trusted (caisson trust), otherwise as data"`
	Canary           *bool     `yaml:"canary" flag:"canary" group:"Task" default:"false" tighten:"true false" doc:"mark the model's instructions with a token; if an answer or a call repeats it, Caisson replaces it and records a warning"`
	Skills           *string   `yaml:"skills" flag:"skills" value:"WHICH" group:"Task" default:"all" enum:"all user off" tighten:"off user all" doc:"skills that the model can load: all; user (none from the workspace); or off"`
	Limits           Limits    `yaml:"limits" doc:"limits of a run; without a key there is no limit"`
	Resources        Resources `yaml:"resources" doc:"resources of a sandbox"`
}

// Limits bound one run. A missing one means no limit, except for rounds.
type Limits struct {
	Rounds    *Count        `yaml:"max_rounds" flag:"max-rounds" value:"N" group:"Limits" default:"50" doc:"model calls in the run"`
	ToolCalls *Count        `yaml:"max_tool_calls" flag:"max-tool-calls" value:"N" group:"Limits" doc:"tool calls in the run"`
	Tokens    *Count        `yaml:"max_tokens" flag:"max-tokens" value:"N" group:"Limits" doc:"input and output tokens in the run"`
	Cost      *Dollars      `yaml:"max_cost_usd" flag:"max-cost-usd" value:"USD" group:"Limits" doc:"US dollars that the run may cost, by the price of the model, such as 0.50"`
	Timeout   *Duration     `yaml:"timeout" flag:"timeout" value:"TIME" group:"Limits" doc:"wall time of the run, such as 10m"`
	Session   SessionLimits `yaml:"session" doc:"limits of a session, over all its turns"`
	Day       CeilingLimits `yaml:"day" doc:"limits of all sessions of a user together, per day (UTC)"`
	Month     CeilingLimits `yaml:"month" doc:"limits of all sessions of a user together, per month"`
}

// CeilingLimits bound the usage of all sessions together in a day or month.
type CeilingLimits struct {
	Requests *Count   `yaml:"max_requests" doc:"requests that a model answered"`
	Tokens   *Count   `yaml:"max_tokens" doc:"input and output tokens"`
	Cost     *Dollars `yaml:"max_cost_usd" doc:"US dollars, by the prices of the models"`
}

// ProfileLimits bound the usage of one model by all users together.
type ProfileLimits struct {
	Day   CeilingLimits `yaml:"day" doc:"limits of all sessions of all users together, per day (UTC)"`
	Month CeilingLimits `yaml:"month" doc:"limits of all sessions of all users together, per month"`
}

// SessionLimits bound all turns of a session together.
type SessionLimits struct {
	ToolCalls *Count    `yaml:"max_tool_calls" doc:"tool calls in the session"`
	Tokens    *Count    `yaml:"max_tokens" doc:"input and output tokens in the session"`
	Cost      *Dollars  `yaml:"max_cost_usd" doc:"US dollars that the session may cost, by the prices of its model"`
	Timeout   *Duration `yaml:"timeout" doc:"wall time of the session since it was opened"`
}

// Resources bound one sandbox.
type Resources struct {
	Memory      *Size     `yaml:"memory" flag:"memory" value:"SIZE" group:"Sandbox" shown:"half of the machine's, 2GiB to 8GiB; serve: 2GiB" doc:"memory of the sandbox, such as 2GiB"`
	CPUs        *CPUs     `yaml:"cpus" flag:"cpus" value:"N" group:"Sandbox" shown:"all; serve: 2" doc:"processors of the sandbox, such as 1.5"`
	PIDs        *Count    `yaml:"pids" flag:"pids" value:"N" group:"Sandbox" doc:"processes and threads in the sandbox"`
	Tmp         *Size     `yaml:"tmp" flag:"tmp-size" value:"SIZE" group:"Sandbox" shown:"half of the memory; serve: 512MiB" doc:"size of /tmp in the sandbox, which is memory"`
	Home        *Size     `yaml:"home" doc:"size of the home directory in the sandbox, which is on disk"`
	Shm         *Size     `yaml:"shm" doc:"size of /dev/shm in the sandbox"`
	OpenFiles   *Count    `yaml:"open_files" flag:"open-files" value:"N" group:"Sandbox" doc:"open files per process in the sandbox"`
	CommandTime *Duration `yaml:"command_time" flag:"command-time" value:"TIME" group:"Sandbox" doc:"wall time of one command"`
}

// Model is a model and how to ask it. Selecting it selects all of it.
type Model struct {
	Provider        *string           `yaml:"provider" words:"openai anthropic ollama replay gemini" doc:"openai (and servers that speak its protocol), anthropic, ollama (its own API), replay, or gemini, which only agents can ask"`
	Model           *string           `yaml:"model" doc:"the model's name at its provider"`
	API             *string           `yaml:"api" words:"chat responses" doc:"API of provider openai: responses, or chat (Chat Completions); the default is responses at OpenAI's own address, and chat elsewhere"`
	BaseURL         *string           `yaml:"base_url" doc:"address of the server, if it is not the provider's own"`
	APIKeyEnv       *string           `yaml:"api_key_env" doc:"name of the environment variable that holds the key; never the key"`
	APIKeyCommand   []string          `yaml:"api_key_command" doc:"program and arguments that print the key, run without a shell when the model is first needed"`
	Headers         map[string]string `yaml:"headers" doc:"headers of each request, by name" each:"value of a header; $NAME is that of a variable"`
	Fallback        []string          `yaml:"fallback" doc:"names of models, or provider/model, to ask in this order if this one fails before its answer begins"`
	ReasoningEffort *string           `yaml:"reasoning_effort" words:"none minimal low medium high xhigh max" doc:"how much the model reasons; each provider knows some of these words"`
	ThinkingTokens  *Count            `yaml:"thinking_tokens" doc:"reasoning budget of anthropic's older models, less than max_output_tokens"`
	ToolProtocol    *string           `yaml:"tool_protocol" words:"native tags" doc:"how the model calls tools: native (the default), or tags in its text, for models without function calling"`
	Temperature     *Number           `yaml:"temperature" doc:"sampling temperature"`
	MaxOutputTokens *Count            `yaml:"max_output_tokens" doc:"most tokens of one answer"`
	Limits          ProfileLimits     `yaml:"limits" doc:"limits of the model per day and month, for all users together"`
	ContextWindow   *Count            `yaml:"context_window" doc:"size of the model's context in tokens; an ollama server reserves memory for it"`
	Price           *Price            `yaml:"price" doc:"US dollars per million tokens, if the model's price is not known or differs from the known one"`
	MaxRetries      *Retries          `yaml:"max_retries" doc:"how often to send a request again that failed before its answer began, 0 to 20; the default is 2"`
	MaxRetryDelay   *Duration         `yaml:"max_retry_delay" doc:"longest wait before a request is sent again; the default is 2m"`
	HeaderTimeout   *Duration         `yaml:"header_timeout" doc:"longest wait for the first byte of an answer; the default is 10m"`
	IdleTimeout     *Duration         `yaml:"idle_timeout" doc:"longest silence within an answer; the default is 2m"`
	AnswerTimeout   *Duration         `yaml:"answer_timeout" doc:"longest time of an answer from its headers to its end; the default is 1h"`
}

// Price is in US dollars per million tokens.
type Price struct {
	Input       Number      `yaml:"input" doc:"price of input"`
	CachedInput *Number     `yaml:"cached_input" doc:"price of input that the provider had cached; the default is the price of input"`
	CacheWrite  *Number     `yaml:"cache_write" doc:"price of input that the provider wrote to its cache; the default is the price of input"`
	Output      Number      `yaml:"output" doc:"price of output"`
	Tiers       []PriceTier `yaml:"tiers" doc:"prices of requests with a long input: a list of above, in tokens, with input, cached_input, cache_write and output"`
}

// PriceTier is the price of requests with a long input.
type PriceTier struct {
	Above       Count   `yaml:"above" doc:"tokens of input, including cached ones, above which this price applies to the whole request"`
	Input       Number  `yaml:"input" doc:"price of input"`
	CachedInput *Number `yaml:"cached_input" doc:"price of input that the provider had cached; the default is the price of input"`
	CacheWrite  *Number `yaml:"cache_write" doc:"price of input that the provider wrote to its cache; the default is the price of input"`
	Output      Number  `yaml:"output" doc:"price of output"`
}

// perToken returns the price for the loop, or nil if it is unknown. Without their own
// prices, cached tokens cost as much as input, so that costs are never underestimated.
func (p *Price) perToken() *limits.Price {
	if p == nil {
		return nil
	}
	out := &limits.Price{
		Input: float64(p.Input), CachedInput: float64(valueOr(p.CachedInput, p.Input)),
		CacheWrite: float64(valueOr(p.CacheWrite, p.Input)), Output: float64(p.Output),
	}
	for _, t := range p.Tiers {
		out.Tiers = append(out.Tiers, limits.PriceTier{
			Above: int64(t.Above), Input: float64(t.Input), CachedInput: float64(valueOr(t.CachedInput, t.Input)),
			CacheWrite: float64(valueOr(t.CacheWrite, t.Input)), Output: float64(t.Output),
		})
	}
	return out
}

// Policy decides which calls run, prompt or are refused.
type Policy struct {
	PolicyRules       `yaml:",inline"`
	RelaxedWorkspaces []string          `yaml:"relaxed_workspaces" doc:"directories in which WRITE is auto, with everything below; a path begins with / or ~/"`
	RelaxedModes      map[string]string `yaml:"relaxed_modes" names:"none read write execute network" words:"auto prompt_once prompt deny" doc:"modes by class in relaxed workspaces" each:"mode of a class in relaxed workspaces"`
	Decider           *Decider          `yaml:"decider" doc:"a program or service that rules on calls before anybody is asked; see docs/approvals.md"`
}

// Decider is a program or service of the operator that rules on calls.
type Decider struct {
	Command   []string          `yaml:"command" doc:"program and arguments; it reads a question from standard input and writes its answer to standard output"`
	URL       *string           `yaml:"url" doc:"https address to which questions are posted; http only on this machine"`
	Headers   map[string]string `yaml:"headers" doc:"headers of each request to url, by name" each:"value of a header; $NAME is that of a variable"`
	Classes   []string          `yaml:"classes" words:"none read write execute network" doc:"classes of calls that it rules on (default: write, execute, network)"`
	Hosts     *bool             `yaml:"hosts" doc:"also ask it about hosts that no egress rule covers, and calls of fetch (default: true)"`
	Timeout   *Duration         `yaml:"timeout" doc:"time for one answer (default: 30s)"`
	OnFailure *string           `yaml:"on_failure" words:"deny ask" doc:"what to do without a valid answer: deny (the default), or ask a person"`
	MayAllow  *bool             `yaml:"may_allow" doc:"let it allow what a person would be asked about (default: false)"`
}

// PolicyRules are the part of a policy that a workspace's own file can have.
type PolicyRules struct {
	Preset            *string           `yaml:"preset" flag:"policy" value:"PRESET" group:"Policy" words:"strict readonly default sandboxed ci" doc:"strict, readonly, default, sandboxed or ci"`
	Default           map[string]string `yaml:"default" names:"none read write execute network" words:"auto prompt_once prompt deny" doc:"modes by class" each:"mode of a class"`
	Tools             map[string]string `yaml:"tools" words:"auto prompt_once prompt deny" doc:"modes by tool: a canonical name, its wire form, or server/*" each:"mode of a tool"`
	Commands          map[string]string `yaml:"commands" words:"auto prompt deny" doc:"modes by command, for every tool that runs commands: a phrase such as go test, or one that ends with \" *\" for further words" each:"mode of a command"`
	DangerousCommands []string          `yaml:"dangerous_commands" doc:"patterns of commands to ask about even if their mode is auto: a name and what must be among its arguments"`
}

// Fetch bounds what the fetch tool may reach.
type Fetch struct {
	Allow       FetchRules          `yaml:"allow" flag:"fetch-allow" value:"URLS" group:"Policy" doc:"origins and paths that the fetch tool may reach; separate them with commas in the flag"`
	Private     map[string][]string `yaml:"private" doc:"private networks that a host of allow may be in, by host" each:"networks or addresses, such as 10.1.2.0/24"`
	FetchLimits `yaml:",inline"`
	Proxy       *string `yaml:"proxy" doc:"http or https proxy that makes the connections; the environment's proxy is not used"`
}

// FetchLimits bound one fetch, and a session's fetches together.
type FetchLimits struct {
	MaxBytes     *Size     `yaml:"max_bytes" doc:"size of one response, decoded"`
	Timeout      *Duration `yaml:"timeout" doc:"time of one fetch, redirects included"`
	SessionBytes *Size     `yaml:"session_bytes" doc:"bytes that a session may exchange with all servers, in both directions"`
	SessionHosts *Count    `yaml:"session_hosts" doc:"different hosts that a session may fetch from"`
}

// FetchBounds are the settings of fetches in a workspace's own file and in
// requirements.
type FetchBounds struct {
	Allow         FetchRules `yaml:"allow" doc:"what allow may contain; absent means anything, empty nothing"`
	RefusePrivate *bool      `yaml:"refuse_private" tighten:"true false" doc:"refuse fetch.private and fetch.proxy: Caisson can't see private networks behind a proxy"`
	FetchLimits   `yaml:",inline"`
}

// Egress bounds what commands may reach. See docs/egress.md.
type Egress struct {
	Presets      Names                   `yaml:"presets" flag:"egress-preset" value:"NAMES" group:"Sandbox" words:"apt cargo go maven npm pip" doc:"package managers whose public registries commands may read: apt, cargo, go, maven, npm, pip; separate them with commas in the flag"`
	Git          []EgressGit             `yaml:"git" doc:"https URLs of git repositories, or of directories with repositories, that commands may fetch from; with url and push: true they may also push"`
	Allow        EgressRules             `yaml:"allow" flag:"egress-allow" value:"RULES" group:"Sandbox" doc:"what commands may reach: https://HOST/PATH, http://HOST/PATH, tls://HOST, tcp://HOST:PORT, host://HOST or public; separate them with commas in the flag"`
	Deny         EgressRules             `yaml:"deny" doc:"what commands and the fetch tool may not reach, even if a rule allows it"`
	Private      map[string][]string     `yaml:"private" doc:"private networks that a host of allow may be in, by host" each:"networks or addresses, such as 10.1.2.0/24"`
	Proxy        *string                 `yaml:"proxy" doc:"http or https proxy that makes the connections; the environment's proxy is not used"`
	Secrets      map[string]EgressSecret `yaml:"secrets" doc:"keys that commands can use but not see, by the variable that has a placeholder" each:"one key"`
	CA           []string                `yaml:"ca" doc:"files with certificates of more authorities to trust, on this machine and in the sandbox; a path begins with / or ~/"`
	Cache        *string                 `yaml:"cache" default:"session" enum:"session shared off" doc:"how long files of the presets' registries are kept: session; shared, by all sessions of the user; or off"`
	Lock         *string                 `yaml:"lock" doc:"file that pins the content of each file of the presets' registries; if it does not exist, it is written at the session's end; its path begins with / or ~/"`
	Capture      *bool                   `yaml:"capture" default:"true" doc:"let programs that ignore proxies connect by name, to ports 22, 80, 443 and the ports in rules"`
	EgressBounds `yaml:",inline"`

	// within are the lists of requirements and workspaces, which narrow Allow.
	within [][]rule.Rule
	// publicOnly is set if one of them refuses non-public addresses.
	publicOnly bool
}

// EgressSecret is a key that commands use without seeing it. It has From or Command.
type EgressSecret struct {
	From    *string     `yaml:"from" doc:"env: and the variable of caisson's own environment that holds the key"`
	Command []string    `yaml:"command" doc:"program and arguments that print the key, run without a shell when a session begins"`
	To      EgressRules `yaml:"to" doc:"https URLs that the key is sent to, with everything below them"`
	Header  *string     `yaml:"header" doc:"header that has the key; the default is Authorization"`
}

// EgressBounds are the settings of egress that a workspace's own file and requirements
// can make stricter.
type EgressBounds struct {
	Unknown *string      `yaml:"unknown" default:"deny" enum:"deny prompt" tighten:"deny prompt" doc:"what to do about hosts without a rule: deny, or prompt, which asks once per host and port"`
	Budget  EgressLimits `yaml:"budget" doc:"limits of all connections of a session's commands"`
}

// EgressLimits bound all connections of a session's commands together.
type EgressLimits struct {
	Bytes       *Size  `yaml:"bytes" doc:"bytes in both directions"`
	Upload      *Size  `yaml:"upload" doc:"bytes that are sent"`
	Connections *Count `yaml:"connections" doc:"connections"`
	Hosts       *Count `yaml:"hosts" doc:"different hosts"`
}

// EgressRestrictions are the settings of egress in a workspace's own file and in
// requirements.
type EgressRestrictions struct {
	Allow         EgressRules `yaml:"allow" doc:"what allow may contain; absent means anything, empty nothing"`
	Deny          EgressRules `yaml:"deny" doc:"rules that are refused in addition"`
	RefusePrivate *bool       `yaml:"refuse_private" tighten:"true false" doc:"refuse egress.private and egress.proxy: Caisson can't see private networks behind a proxy"`
	EgressBounds  `yaml:",inline"`
}

// Docker names the engine and its runtime.
type Docker struct {
	Host    *string `yaml:"host" flag:"docker-host" value:"URL" group:"Sandbox" doc:"address of the Docker engine; the default comes from DOCKER_HOST and contexts"`
	Runtime *string `yaml:"runtime" flag:"docker-runtime" value:"NAME" group:"Sandbox" doc:"runtime of the Docker engine, such as runsc"`
}

// HostImage lists what image host has besides the machine's /usr.
type HostImage struct {
	Toolchains []string `yaml:"toolchains" doc:"directories to show read-only at their own path, which begins with / or ~/"`
	Mask       []string `yaml:"mask" doc:"directories below /usr or a toolchain to hide"`
}

// Images has the settings for fetching images.
type Images struct {
	BuildNetwork *string  `yaml:"build_network" flag:"build-network" value:"WHAT" group:"Sandbox" default:"none" enum:"none public" doc:"network of the commands of a Dockerfile (build:DIR): none; or public, for public addresses and the hosts of egress.allow (the default of batch)"`
	PlainHTTP    []string `yaml:"plain_http" doc:"registries without TLS, as host or host:port; loopback needs no entry"`
}

// Mount is a directory of this machine that commands see.
type Mount struct {
	From     *string `yaml:"from" json:"from" doc:"the directory; its path begins with / or ~/"`
	To       *string `yaml:"to" json:"to" doc:"its path in the sandbox"`
	ReadOnly *bool   `yaml:"read_only" json:"read_only,omitempty" doc:"commands can't change it"`
}

// Programs are absolute paths of programs that are otherwise looked for beside the
// executable and on PATH. Buildctl and Buildah build build:DIR without an engine.
type Programs struct {
	Guest    *string `yaml:"caisson-guest" doc:"absolute path of caisson-guest"`
	Runsc    *string `yaml:"runsc" doc:"absolute path of runsc"`
	Runc     *string `yaml:"runc" doc:"absolute path of runc"`
	Buildctl *string `yaml:"buildctl" doc:"absolute path of buildctl"`
	Buildah  *string `yaml:"buildah" doc:"absolute path of buildah"`
}

// DefaultListen is the default address of caisson serve.
const DefaultListen = "127.0.0.1:8717"

// Serve has the settings of caisson serve. Its sessions use the rest of the file.
type Serve struct {
	Listen      []string               `yaml:"listen" doc:"addresses, HOST:PORT or unix:PATH (absolute); the default is 127.0.0.1:8717"`
	AllowRemote *bool                  `yaml:"allow_remote" doc:"allow addresses in listen that other machines can reach"`
	Roots       []string               `yaml:"roots" doc:"absolute directories that contain the workspaces of sessions, or are one"`
	Batches     []string               `yaml:"batches" doc:"absolute directories of caisson batch that the page shows: each is a batch, or holds batches one level below"`
	Hosts       []string               `yaml:"hosts" doc:"more names of the server, with or without ports, besides localhost and its addresses"`
	Tokens      map[string]TokenSource `yaml:"tokens" doc:"bearer tokens, by a label for their holder; without one, each start makes a token" each:"where a token comes from: env or file"`
	Models      []string               `yaml:"models" doc:"names of models that clients may use; the default is all of models, and the configured model"`
	Images      []string               `yaml:"images" doc:"images that clients may name besides the configured one"`
	MaxSessions *Count                 `yaml:"max_sessions" doc:"most sessions at once"`
	MaxStreams  *Count                 `yaml:"max_streams" doc:"most event streams and copies of files that one token may have open"`
	MaxTransfer *Size                  `yaml:"max_transfer" doc:"largest copy of files into or out of a sandbox; the default is 1GiB"`
	IdleTime    *Duration              `yaml:"idle_time" doc:"how long a session without a turn is kept"`
	Sandboxes   ServeSandboxes         `yaml:"sandboxes" doc:"sandboxes without a model: whether they start, and what clients may choose for them, by name; their other settings come from the rest of the file"`
	OpenMetrics *bool                  `yaml:"open_metrics" doc:"serve /metrics without a token"`
}

// ServeSandboxes are clients' choices for sandboxes without a model.
type ServeSandboxes struct {
	Enabled   *bool                `yaml:"enabled" doc:"true starts them even if the server's own policy asks about writing or executing, false starts none; by default they start only if the policy allows both without asking"`
	Images    map[string]string    `yaml:"images" doc:"images, by the name that clients use" each:"an image, as for image"`
	Mounts    map[string]Mount     `yaml:"mounts" doc:"directories of this machine, by the name that clients use" each:"one directory"`
	Resources map[string]Resources `yaml:"resources" doc:"sizes, by the name that clients use; missing keys have the values of resources" each:"one size"`
	MaxTTL    *Duration            `yaml:"max_ttl" doc:"longest time that a sandbox may stay without a command; the default is 24h"`
}

// TokenSource is the source of a token, Env or File but never the token itself, and its
// holder's roles.
type TokenSource struct {
	Env   *string       `yaml:"env" doc:"name of the environment variable that holds the token; never the token"`
	File  *string       `yaml:"file" doc:"absolute path of the file that holds the token"`
	Roles []server.Role `yaml:"roles" words:"read run approve admin" doc:"what the token's holder may do: read, run (start, message, cancel and end sessions), approve (answer for a call or a session), admin (all of these, lasting answers, apply); the default is read and run"`
}

// Tool is a command that the model is offered as a tool. It has either a Command or a
// Script.
type Tool struct {
	Description string     `yaml:"description" doc:"description of the tool, for the model"`
	InputSchema ToolSchema `yaml:"input_schema" doc:"JSON Schema of its arguments: strings, numbers, booleans, and lists of these"`
	Command     []string   `yaml:"command" doc:"the program and its arguments; {{name}} stands for the model's value of an argument"`
	Script      string     `yaml:"script" doc:"a script for sh instead of command; it gets its arguments as $ARG_NAME"`
	Class       string     `yaml:"class" doc:"execute, or write if it only changes files"`
	Cwd         string     `yaml:"cwd" doc:"working directory, relative to the workspace"`
	Timeout     Duration   `yaml:"timeout" doc:"longest time of one run"`
	Paths       []string   `yaml:"paths" doc:"arguments that are paths in the workspace"`
	Parallel    bool       `yaml:"parallel" doc:"allow calls while other commands run"`

	// RequiresAdmin withholds the tool from HTTP clients without the role admin.
	RequiresAdmin bool `yaml:"requires_admin" doc:"offer it only to administrators: to clients with the role admin, and to people at the command line unless requirements refuse that"`

	declared shell.Declared
}

// Project is a workspace's own file. It takes effect only in a trusted workspace, and
// only tightens: it lowers limits and resources, and makes the policy's modes stricter.
// It can't name models, addresses, keys, backends, images, engines or programs, nor use
// the environment.
type Project struct {
	Bounds `yaml:",inline"`
	Policy *PolicyRules       `yaml:"policy" doc:"least strict modes that calls may have"`
	Fetch  FetchBounds        `yaml:"fetch" doc:"what the fetch tool may reach at most"`
	Egress EgressRestrictions `yaml:"egress" doc:"what commands may reach at most"`
}

// Requirements is an administrator's file. It only tightens: it lowers limits and
// resources, and makes the policy's modes stricter. It refuses choices that it doesn't
// allow.
type Requirements struct {
	Backends              []string        `yaml:"backends" doc:"allowed backends; absent means any"`
	Images                []string        `yaml:"images" doc:"allowed images; a name may end in *"`
	Mounts                []string        `yaml:"mounts" doc:"directories that may be mounted, with everything in them; absent means any, empty none"`
	WritableMounts        []string        `yaml:"writable_mounts" doc:"directories of these that commands may change; absent means all"`
	EnvFrom               []string        `yaml:"env_from" doc:"variables that env_from may name; a name may end in *; empty means none"`
	RefuseCallerOwnsFiles bool            `yaml:"refuse_caller_owns_files" doc:"refuse caller_owns_files"`
	RefuseSystemWorkspace bool            `yaml:"refuse_system_workspace" doc:"refuse accept_system_workspace"`
	RefuseWritableRoot    bool            `yaml:"refuse_writable_root" doc:"refuse writable_root"`
	MCP                   MCPRestrictions `yaml:"mcp" doc:"allowed MCP servers"`
	RefuseLocalAdmin      bool            `yaml:"refuse_local_admin" doc:"don't let people at the command line use tools that require an administrator"`
	Bounds                `yaml:",inline"`
	Policy                *Policy            `yaml:"policy" doc:"least strict modes that calls may have"`
	Fetch                 FetchBounds        `yaml:"fetch" doc:"what the fetch tool may reach at most"`
	Egress                EgressRestrictions `yaml:"egress" doc:"what commands may reach at most"`
}

// builtinFile returns the lowest layer: the tags default, and the defaults of
// libraries. It must have every default, so that requirements are compared with the
// values in effect. r are the sandbox's resources.
func builtinFile(r limits.Resources) File {
	e, commands := limits.DefaultEgressBudget(), limits.DefaultCommandEgressBudget()
	f := File{
		Concurrency: new(Count(dispatch.DefaultConcurrency)), ConfirmTimeout: new(Duration(dispatch.DefaultConfirmTimeout)), Grace: new(Duration(sandbox.DefaultGrace)),
		Bounds: Bounds{Resources: Resources{
			Memory: new(Size(r.MemoryBytes)), CPUs: new(CPUs(r.MilliCPUs)), PIDs: new(Count(r.PIDs)),
			Tmp: new(Size(r.TmpBytes)), Home: new(Size(r.HomeBytes)), Shm: new(Size(r.ShmBytes)),
			OpenFiles: new(Count(r.OpenFiles)), CommandTime: new(Duration(r.CommandTime)),
		}},
		Fetch: Fetch{FetchLimits: FetchLimits{
			MaxBytes: new(Size(fetch.DefaultMaxBytes)), Timeout: new(Duration(fetch.DefaultTimeout)),
			SessionBytes: new(Size(e.Bytes)), SessionHosts: new(Count(e.Hosts)),
		}},
		Egress: Egress{EgressBounds: EgressBounds{Budget: EgressLimits{
			Bytes: new(Size(commands.Bytes)), Upload: new(Size(commands.Upload)), Connections: new(Count(commands.Connections)), Hosts: new(Count(commands.Hosts)),
		}}},
	}
	for _, k := range keysOf(reflect.TypeFor[File]()) {
		text, ok := k.tag.Lookup("default")
		if !ok {
			continue
		}
		if err := setText(k.valueIn(reflect.ValueOf(&f).Elem()), text, k.tagWords("enum")); err != nil {
			panic("config: default of " + k.name + ": " + err.Error()) // a tag above is wrong
		}
	}
	return f
}
