package config

import "maps"

// File is the content of a configuration file, of a profile, and of what the
// environment and the flags say. A nil field is not set.
type File struct {
	// Model is a profile's name, or provider/model.
	Model *string `yaml:"model"`
	// Models are the model profiles by name.
	Models map[string]Model `yaml:"models"`

	Backend *string `yaml:"backend"` // auto, docker, gvisor, runc
	Image   *string `yaml:"image"`
	Git     *string `yaml:"git"` // ro, commit
	// Mode is how the workspace is mounted: bind, overlay. KeepChanges is how
	// long the changes of an overlay session wait to be applied.
	Mode        *string   `yaml:"mode"`
	KeepChanges *Duration `yaml:"keep_changes"`
	// KeepSessions is how long records are kept whole; audit records stay.
	KeepSessions *Duration `yaml:"keep_sessions"`
	// Submounts are mounts inside the workspace that are accepted.
	Submounts []string `yaml:"submounts"`
	// AcceptRunnerAsOwner lets new files belong to the user who runs Caisson
	// in a workspace of another user.
	AcceptRunnerAsOwner *bool `yaml:"accept_runner_as_owner"`
	// AcceptSystemWorkspace lets a directory of the system, such as /etc or /home,
	// be a workspace.
	AcceptSystemWorkspace *bool `yaml:"accept_system_workspace"`
	// RefuseLost refuses a sandbox that can't have every protection here.
	RefuseLost *bool     `yaml:"refuse_lost"`
	Grace      *Duration `yaml:"grace"`
	// Concurrency is how many tool calls of a session run at once, ConfirmTimeout
	// how long an answer to a confirmation is waited for.
	Concurrency    *Count    `yaml:"concurrency"`
	ConfirmTimeout *Duration `yaml:"confirm_timeout"`
	Stream         *bool     `yaml:"stream"`

	Policy   *Policy `yaml:"policy"`
	OnPrompt *string `yaml:"on_prompt"` // deny, fail, allow
	// InstructionFiles lets the model have the workspace's AGENTS.md, as data.
	InstructionFiles *bool `yaml:"instruction_files"`

	Limits    Limits    `yaml:"limits"`
	Resources Resources `yaml:"resources"`
	Sandbox   Sandbox   `yaml:"sandbox"`
	Docker    Docker    `yaml:"docker"`
	HostImage HostImage `yaml:"host_image"`
	Images    Images    `yaml:"images"`
	Programs  Programs  `yaml:"programs"`
	Serve     Serve     `yaml:"serve"`
	Fetch     Fetch     `yaml:"fetch"`

	// Tools are commands that the model is offered as tools of their own;
	// MemoryTools offers the tools that keep notes of a workspace.
	Tools       Tools `yaml:"tools"`
	MemoryTools *bool `yaml:"memory_tools"`

	// Profiles are named sets of these settings; a profile has none itself.
	Profiles map[string]File `yaml:"profiles"`
}

// Model is one model profile. Selecting it selects all of it.
type Model struct {
	Provider *string `yaml:"provider"` // openai, or a server that speaks its protocol
	Model    *string `yaml:"model"`
	BaseURL  *string `yaml:"base_url"`
	// APIKeyEnv names the environment variable that holds the key.
	APIKeyEnv       *string `yaml:"api_key_env"`
	Temperature     *Number `yaml:"temperature"`
	MaxOutputTokens *Count  `yaml:"max_output_tokens"`
	ContextWindow   *Count  `yaml:"context_window"`
	Price           *Price  `yaml:"price"`
	// MaxRetries and the times say when a call is sent again or given up; see
	// openai.Options.
	MaxRetries    *Retries  `yaml:"max_retries"`
	MaxRetryDelay *Duration `yaml:"max_retry_delay"`
	HeaderTimeout *Duration `yaml:"header_timeout"`
	IdleTimeout   *Duration `yaml:"idle_timeout"`
}

// Price is in US dollars per million tokens.
type Price struct {
	Input       Number `yaml:"input"`
	CachedInput Number `yaml:"cached_input"`
	Output      Number `yaml:"output"`
}

// Policy says which calls run, prompt or are refused.
type Policy struct {
	Preset            *string           `yaml:"preset"`
	Default           map[string]string `yaml:"default"` // class: mode
	Tools             map[string]string `yaml:"tools"`   // name: mode
	TrustedWorkspaces []string          `yaml:"trusted_workspaces"`
	TrustedOverrides  map[string]string `yaml:"trusted_workspace_overrides"`
	// DangerousCommands are patterns beside the built-in ones; see tools.Policy.
	DangerousCommands []string `yaml:"dangerous_commands"`
}

// Limits bound one run. A missing one is no limit, but for rounds.
type Limits struct {
	Rounds    *Count    `yaml:"max_rounds"`
	ToolCalls *Count    `yaml:"max_tool_calls"`
	Tokens    *Count    `yaml:"max_tokens"`
	Cost      *Dollars  `yaml:"max_cost_usd"`
	Timeout   *Duration `yaml:"timeout"`
	// Session bounds all turns of one session together.
	Session SessionLimits `yaml:"session"`
}

// SessionLimits bound one session, however many turns it has.
type SessionLimits struct {
	ToolCalls *Count    `yaml:"max_tool_calls"`
	Tokens    *Count    `yaml:"max_tokens"`
	Cost      *Dollars  `yaml:"max_cost_usd"`
	Timeout   *Duration `yaml:"timeout"`
}

// Resources bound one sandbox.
type Resources struct {
	Memory      *Size     `yaml:"memory"`
	CPUs        *CPUs     `yaml:"cpus"`
	PIDs        *Count    `yaml:"pids"`
	Tmp         *Size     `yaml:"tmp"`
	Home        *Size     `yaml:"home"`
	Shm         *Size     `yaml:"shm"`
	OpenFiles   *Count    `yaml:"open_files"`
	CommandTime *Duration `yaml:"command_time"`
}

// Sandbox says how sandboxes are started.
type Sandbox struct {
	// Pool is how many are started ahead; without it none is.
	Pool *Count `yaml:"pool"`
}

// Docker says which engine, and which of its runtimes.
type Docker struct {
	Host    *string `yaml:"host"`
	Runtime *string `yaml:"runtime"`
}

// HostImage says what image host has beside the machine's /usr.
type HostImage struct {
	// Toolchains are absolute folders that are shown read-only at their own
	// path; Mask are folders below /usr or a toolchain that are hidden.
	Toolchains []string `yaml:"toolchains"`
	Mask       []string `yaml:"mask"`
}

// Images says how images are fetched.
type Images struct {
	// PlainHTTP are the registries, as host or host:port, that are spoken to
	// without TLS; loopback needs no entry.
	PlainHTTP []string `yaml:"plain_http"`
}

// Programs are absolute paths of what is otherwise found beside the
// executable or on PATH.
type Programs struct {
	Guest *string `yaml:"caisson-guest"`
	Runsc *string `yaml:"runsc"`
	Runc  *string `yaml:"runc"`
	// Builders of build:DIR where there is no engine.
	Buildctl *string `yaml:"buildctl"`
	Buildah  *string `yaml:"buildah"`
}

// Over returns f with everything that upper sets laid over it.
func (f File) Over(upper File) File {
	over(&f.Model, upper.Model)
	f.Models = overMap(f.Models, upper.Models)
	over(&f.Backend, upper.Backend)
	over(&f.Image, upper.Image)
	over(&f.Git, upper.Git)
	over(&f.Mode, upper.Mode)
	over(&f.KeepChanges, upper.KeepChanges)
	over(&f.KeepSessions, upper.KeepSessions)
	if upper.Submounts != nil {
		f.Submounts = upper.Submounts
	}
	over(&f.AcceptRunnerAsOwner, upper.AcceptRunnerAsOwner)
	over(&f.AcceptSystemWorkspace, upper.AcceptSystemWorkspace)
	over(&f.RefuseLost, upper.RefuseLost)
	over(&f.Sandbox.Pool, upper.Sandbox.Pool)
	over(&f.Grace, upper.Grace)
	over(&f.Concurrency, upper.Concurrency)
	over(&f.ConfirmTimeout, upper.ConfirmTimeout)
	over(&f.Stream, upper.Stream)
	f.Policy = f.Policy.over(upper.Policy)
	over(&f.InstructionFiles, upper.InstructionFiles)
	over(&f.OnPrompt, upper.OnPrompt)
	over(&f.Limits.Rounds, upper.Limits.Rounds)
	over(&f.Limits.ToolCalls, upper.Limits.ToolCalls)
	over(&f.Limits.Tokens, upper.Limits.Tokens)
	over(&f.Limits.Cost, upper.Limits.Cost)
	over(&f.Limits.Timeout, upper.Limits.Timeout)
	over(&f.Limits.Session.ToolCalls, upper.Limits.Session.ToolCalls)
	over(&f.Limits.Session.Tokens, upper.Limits.Session.Tokens)
	over(&f.Limits.Session.Cost, upper.Limits.Session.Cost)
	over(&f.Limits.Session.Timeout, upper.Limits.Session.Timeout)
	over(&f.Resources.Memory, upper.Resources.Memory)
	over(&f.Resources.CPUs, upper.Resources.CPUs)
	over(&f.Resources.PIDs, upper.Resources.PIDs)
	over(&f.Resources.Tmp, upper.Resources.Tmp)
	over(&f.Resources.Home, upper.Resources.Home)
	over(&f.Resources.Shm, upper.Resources.Shm)
	over(&f.Resources.OpenFiles, upper.Resources.OpenFiles)
	over(&f.Resources.CommandTime, upper.Resources.CommandTime)
	over(&f.Docker.Host, upper.Docker.Host)
	f.Tools = overMap(f.Tools, upper.Tools)
	over(&f.MemoryTools, upper.MemoryTools)
	over(&f.Docker.Runtime, upper.Docker.Runtime)
	if upper.HostImage.Toolchains != nil {
		f.HostImage.Toolchains = upper.HostImage.Toolchains
	}
	if upper.HostImage.Mask != nil {
		f.HostImage.Mask = upper.HostImage.Mask
	}
	if upper.Images.PlainHTTP != nil {
		f.Images.PlainHTTP = upper.Images.PlainHTTP
	}
	over(&f.Programs.Guest, upper.Programs.Guest)
	over(&f.Programs.Runsc, upper.Programs.Runsc)
	over(&f.Programs.Runc, upper.Programs.Runc)
	over(&f.Programs.Buildctl, upper.Programs.Buildctl)
	over(&f.Programs.Buildah, upper.Programs.Buildah)
	f.Serve = f.Serve.over(upper.Serve)
	f.Fetch = f.Fetch.over(upper.Fetch)
	return f
}

func over[T any](lower **T, upper *T) {
	if upper != nil {
		*lower = upper
	}
}

func overMap[V any](lower, upper map[string]V) map[string]V {
	if len(upper) == 0 {
		return lower
	}
	out := maps.Clone(upper)
	for k, v := range lower {
		if _, ok := out[k]; !ok {
			out[k] = v
		}
	}
	return out
}
