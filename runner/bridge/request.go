package bridge

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// request is a request to a model as the bridge reads and changes it.
type request struct {
	endpoint endpoint
	body     object
	profile  *Profile
	asked    string // the agent's name for the model
	stream   bool
	// withheld are the types of tools and the names of members that were removed.
	withheld  []string
	webSearch bool
	// bytes is the size of the body without images, and images their number.
	bytes, images int64
}

// members are the members that the bridge reads or removes, in the spelling of the
// protocols. Another spelling is refused: some servers would take it for the member.
var members = sync.OnceValue(func() map[string]string {
	return foldedNames(
		"model", "stream", "stream_options", "tools", "tool_choice", "tool_config", "parallel_tool_calls", "n", "modalities",
		"max_tokens", "max_completion_tokens", "max_output_tokens", "thinking", "generation_config", "candidate_count", "response_modalities",
		"store", "background", "previous_response_id", "conversation", "prompt", "container", "cached_content", "service_tier", "speed",
		"mcp_servers", "web_search_options", "search_parameters", "enable_search", "search_options", "plugins", "models", "route", "provider",
		"type", "name", "environment", "function_declarations",
	)
})

func foldedNames(names ...string) map[string]string {
	m := map[string]string{}
	for _, name := range names {
		m[foldName(name)] = name
	}
	return m
}

// checkSpelling refuses the members that the bridge knows in another spelling. Gemini
// has two.
func (q *request) checkSpelling(o object) error {
	for _, m := range o {
		want, known := members()[foldName(m.name)]
		if known && m.name != want && !(q.endpoint.protocol == Gemini && m.name == camelCase(want)) {
			return fmt.Errorf("the member %s must be spelled %s", shorten(m.name), want)
		}
	}
	return nil
}

func camelCase(name string) string {
	words := strings.Split(name, "_")
	for i := 1; i < len(words); i++ {
		words[i] = strings.ToUpper(words[i][:1]) + words[i][1:]
	}
	return strings.Join(words, "")
}

// rewrite checks the request and removes what the provider would do by itself. The
// output's bound is set later, by setOutput.
func (q *request) rewrite(raw []byte) error {
	var err error
	if q.body, err = parseBody(raw); err != nil {
		return err
	}
	if err := q.checkSpelling(q.body); err != nil {
		return err
	}
	q.bytes = int64(len(raw))
	q.asked = q.endpoint.model
	q.stream = q.endpoint.streams()
	if q.endpoint.protocol != Gemini {
		q.asked = q.body.text("model")
		switch string(q.body.value("stream")) {
		case "true":
			q.stream = true
		case "", "false":
		default:
			return errors.New("stream must be true or false")
		}
	}
	for _, step := range []func() error{q.refuseMembers, q.removeMembers, q.filterTools, q.filterItems, q.checkMedia} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// refuseMembers refuses requests for more than one answer, for work that goes on
// after the answer, and for what is stored at the provider, which may belong to
// somebody else with the same key.
func (q *request) refuseMembers() error {
	for _, name := range []string{"previous_response_id", "conversation", "prompt", "container", "cached_content"} {
		if q.body.value(foldName(name)) != nil {
			return fmt.Errorf("%s names something that is stored at the provider, which requests may not use", name)
		}
	}
	if v := q.body.value("background"); v != nil && string(v) != "false" {
		return errors.New("background requests are not allowed")
	}
	of := q.body
	if raw := q.body.value("generationconfig"); raw != nil {
		config, err := parseObject(raw)
		if err != nil {
			return fmt.Errorf("generation_config: %w", err)
		}
		if err := q.checkSpelling(config); err != nil {
			return err
		}
		of = append(slices.Clone(of), config...)
	}
	for _, name := range []string{"n", "candidate_count"} {
		if v := of.value(foldName(name)); v != nil && string(v) != "1" && string(v) != `"1"` {
			return fmt.Errorf("%s must be 1", name)
		}
	}
	for _, name := range []string{"modalities", "response_modalities"} {
		for _, v := range elements(of.value(foldName(name))) {
			if text, _ := decodeString(v); !strings.EqualFold(text, "text") {
				return fmt.Errorf("%s may only be text", name)
			}
		}
	}
	return nil
}

// removeMembers removes the members that give the provider tools, choose another
// model, or a dearer way to serve it.
func (q *request) removeMembers() error {
	for _, name := range []string{"mcp_servers", "search_parameters", "enable_search", "search_options", "plugins", "models", "route", "provider", "web_search_options", "data_sources", "fallbacks", "preset", "deferred", "inference_geo"} {
		searches := name == "web_search_options" && q.webSearch
		if q.body.value(foldName(name)) != nil && !searches {
			q.withhold(name)
			q.body.remove(foldName(name))
		}
	}
	for _, name := range []string{"service_tier", "speed"} {
		cheap := []string{"auto", "default", "flex", "standard", "standard_only"}
		if q.body.value(foldName(name)) != nil && !slices.Contains(cheap, q.body.text(foldName(name))) {
			q.withhold(name)
			q.body.remove(foldName(name))
		}
	}
	// Nobody can ask for a stored answer.
	if q.body.value("store") != nil || q.endpoint.name == "responses" {
		q.body.set("store", []byte("false"))
	}
	return nil
}

// maxWithheld and maxWithheldBytes bound what is told of the tools that were removed.
const maxWithheld, maxWithheldBytes = 100, 100

func (q *request) withhold(name string) {
	name = name[:min(len(name), maxWithheldBytes)]
	if len(q.withheld) < maxWithheld && !slices.Contains(q.withheld, name) {
		q.withheld = append(q.withheld, name)
	}
}

// filterTools removes the tools that the provider runs itself. Only types that the
// agent runs are known to be harmless; all others are removed.
func (q *request) filterTools() error {
	raw := q.body.value("tools")
	if raw == nil {
		return nil
	}
	if raw[0] != '[' {
		return errors.New("tools must be an array")
	}
	kept, removed, err := q.keptTools(raw, false)
	if err != nil {
		return err
	}
	if len(removed) == 0 {
		return nil
	}
	if len(kept) > 0 {
		q.body.set("tools", encodeArray(kept))
	} else {
		for _, name := range []string{"tools", "toolchoice", "toolconfig", "paralleltoolcalls"} {
			q.body.remove(name)
		}
	}
	return q.dropChoice(removed)
}

// filterItems does the same in the items of Responses' input. Codex gives its tools to
// some models in an item, additional_tools.
func (q *request) filterItems() error {
	if q.endpoint.protocol != Responses {
		return nil
	}
	items := elements(q.body.value("input"))
	var all []string
	for i, raw := range items {
		if raw[0] != '{' {
			continue
		}
		item, err := parseObject(raw)
		if err != nil {
			return fmt.Errorf("input: %w", err)
		}
		kept, removed, err := q.keptTools(item.value("tools"), false)
		if err != nil {
			return err
		}
		if len(removed) > 0 {
			item.set("tools", encodeArray(kept))
			items[i] = item.encode()
			all = append(all, removed...)
		}
	}
	if len(all) == 0 {
		return nil
	}
	q.body.set("input", encodeArray(items))
	return q.dropChoice(all)
}

// keptTools returns the tools to keep, and the types and names of the others. inner is
// set for the tools in one of Responses' namespaces.
func (q *request) keptTools(raw []byte, inner bool) (kept [][]byte, removed []string, err error) {
	list := elements(raw)
	if len(list) > maxTools {
		return nil, nil, fmt.Errorf("there are more than %d tools", maxTools)
	}
	for _, one := range list {
		tool, err := parseObject(one)
		if err != nil {
			return nil, nil, fmt.Errorf("tools: %w", err)
		}
		if err := q.checkSpelling(tool); err != nil {
			return nil, nil, fmt.Errorf("tools: %w", err)
		}
		kind := tool.text("type")
		switch {
		case q.endpoint.protocol == Gemini:
			one, removed = q.keptDeclarations(tool, one, removed)
		case q.endpoint.protocol == Responses && kind == "namespace" && !inner:
			of, gone, err := q.keptTools(tool.value("tools"), true)
			if err != nil {
				return nil, nil, err
			}
			removed = append(removed, gone...)
			if len(gone) > 0 {
				tool.set("tools", encodeArray(of))
				one = tool.encode()
			}
			if len(of) == 0 {
				one = nil
			}
		case !q.runsLocally(kind, tool):
			removed = append(removed, kind, tool.text("name"))
			if kind == "" {
				kind = "without a type"
			}
			q.withhold(kind)
			one = nil
		}
		if one != nil {
			kept = append(kept, one)
		}
	}
	return kept, removed, nil
}

// keptDeclarations returns Gemini's tool with only what is allowed, or nil.
func (q *request) keptDeclarations(tool object, raw []byte, removed []string) ([]byte, []string) {
	var kept object
	for _, m := range tool {
		folded := foldName(m.name)
		if folded == "functiondeclarations" || folded == "googlesearch" && q.webSearch {
			kept = append(kept, m)
			continue
		}
		q.withhold(m.name)
		removed = append(removed, m.name)
	}
	switch len(kept) {
	case len(tool):
		return raw, removed
	case 0:
		return nil, removed
	}
	return kept.encode(), removed
}

// runsLocally reports whether the agent, and not the provider, runs a type of tool.
// Anthropic's types end with a date. Its tool search only reads the request's tools.
func (q *request) runsLocally(kind string, tool object) bool {
	hasPrefix := func(prefixes ...string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(kind, p) })
	}
	switch q.endpoint.protocol {
	case Anthropic:
		return tool.value("type") == nil || kind == "custom" || hasPrefix("bash_", "text_editor_", "computer_", "memory_", "tool_search_tool_") ||
			q.webSearch && hasPrefix("web_search_")
	case Responses:
		if kind == "shell" { // OpenAI's own machine, unless it says otherwise
			environment, err := parseObject(tool.value("environment"))
			return err == nil && environment.text("type") == "local"
		}
		return slices.Contains([]string{"function", "custom", "local_shell", "apply_patch", "computer", "computer_use_preview", "tool_search"}, kind) ||
			q.webSearch && (kind == "web_search" || hasPrefix("web_search_"))
	}
	return kind == "function" || kind == "custom"
}

// dropChoice removes a choice that forces a removed tool. removed has types and names.
func (q *request) dropChoice(removed []string) error {
	raw := q.body.value("toolchoice")
	if raw == nil || raw[0] != '{' {
		return nil
	}
	choice, err := parseObject(raw)
	if err != nil {
		return fmt.Errorf("tool_choice: %w", err)
	}
	names := []string{choice.text("type"), choice.text("name")}
	tools := elements(choice.value("tools")) // of Responses' allowed_tools
	if len(tools) > maxTools {
		return fmt.Errorf("tool_choice: there are more than %d tools", maxTools)
	}
	for _, one := range tools {
		allowed, err := parseObject(one)
		if err != nil {
			return fmt.Errorf("tool_choice: %w", err)
		}
		names = append(names, allowed.text("type"), allowed.text("name"))
	}
	gone := map[string]bool{}
	for _, name := range removed {
		gone[name] = name != ""
	}
	if slices.ContainsFunc(names, func(name string) bool { return gone[name] }) {
		q.body.remove("toolchoice")
	}
	return nil
}

// setModel replaces the model by the profile's.
func (q *request) setModel() {
	if q.endpoint.protocol == Gemini {
		q.body.remove("model") // the path decides
		return
	}
	q.body.set("model", quote(q.profile.Model))
}

// outputMember returns the name of the member that bounds the output.
func (q *request) outputMember() string {
	switch {
	case q.endpoint.protocol == Responses:
		return "max_output_tokens"
	case q.endpoint.protocol == Chat && isOpenAI(q.profile.BaseURL):
		return "max_completion_tokens"
	}
	return "max_tokens"
}

// isOpenAI reports whether an endpoint is OpenAI's own, which requires another name
// for the bound than most compatible servers know.
func isOpenAI(u *url.URL) bool {
	host := u.Hostname()
	return host == "openai.com" || strings.HasSuffix(host, ".openai.com") || strings.HasSuffix(host, ".openai.azure.com")
}

// compacts reports whether the endpoint takes no bound on the output.
func (q *request) compacts() bool { return q.endpoint.name == "responses/compact" }

// output returns the agent's bound on the output, or 0 if it has none. least is the
// smallest bound that the provider accepts, one above the bound on reasoning, or 0.
func (q *request) output() (bound, least int64) {
	of := q.body
	if q.endpoint.protocol == Gemini {
		of, _ = parseObject(q.body.value("generationconfig")) // checked before
	}
	for _, name := range []string{"maxtokens", "maxcompletiontokens", "maxoutputtokens"} {
		text := strings.Trim(string(of.value(name)), `"`)
		if n, err := strconv.ParseInt(text, 10, 64); err == nil && n > 0 && (bound == 0 || n < bound) {
			bound = n
		}
	}
	if thinking, err := parseObject(q.body.value("thinking")); err == nil {
		if n, err := strconv.ParseInt(string(thinking.value("budgettokens")), 10, 64); err == nil && n > 0 {
			least = n + 1
		}
	}
	return bound, least
}

// setOutput sets the bound on the output in the member that the provider knows: it could
// ignore the agent's. Most servers of Chat know both of its spellings, OpenAI only one.
func (q *request) setOutput(bound int64) error {
	if q.compacts() {
		return nil
	}
	number := strconv.AppendInt(nil, bound, 10)
	if q.endpoint.protocol == Gemini {
		config := object{}
		if raw := q.body.value("generationconfig"); raw != nil {
			var err error
			if config, err = parseObject(raw); err != nil {
				return err
			}
		}
		config.set("maxOutputTokens", number)
		q.body.set("generationConfig", config.encode())
		return nil
	}
	own := q.outputMember()
	for _, name := range []string{"max_tokens", "max_completion_tokens", "max_output_tokens"} {
		switch both := q.endpoint.protocol == Chat && own == "max_tokens" && name == "max_completion_tokens"; {
		case name == own:
			q.body.set(name, number)
		case both && q.body.value(foldName(name)) != nil:
			q.body.set(name, number)
		default:
			q.body.remove(foldName(name))
		}
	}
	return nil
}

// askForUsage makes a stream of Chat tell its usage.
func (q *request) askForUsage() error {
	if q.endpoint.protocol != Chat || !q.stream {
		return nil
	}
	options := object{}
	if raw := q.body.value("streamoptions"); raw != nil {
		var err error
		if options, err = parseObject(raw); err != nil {
			return fmt.Errorf("stream_options: %w", err)
		}
	}
	options.set("include_usage", []byte("true"))
	q.body.set("stream_options", options.encode())
	return nil
}

// url returns the provider's URL for the request.
func (q *request) url(query url.Values) *url.URL {
	var u *url.URL
	switch q.endpoint.protocol {
	case Anthropic:
		u = q.profile.BaseURL.JoinPath("v1", q.endpoint.name)
	case Gemini:
		u = q.profile.BaseURL.JoinPath("models", url.PathEscape(q.profile.Model)+":"+q.endpoint.name)
	default:
		u = q.profile.BaseURL.JoinPath(q.endpoint.name)
	}
	sent := u.Query() // of the base URL, such as Azure's api-version
	for name, value := range map[string]string{"alt": "sse", "beta": "true"} {
		if query.Get(name) == value {
			sent.Set(name, value)
		}
	}
	u.RawQuery = sent.Encode()
	return u
}

// passedHeaders are the headers of the agent that go to the provider. All others stay
// here, above all those with credentials.
var passedHeaders = []string{
	"Accept", "Anthropic-Version", "Anthropic-Beta", "Openai-Beta", "User-Agent", "X-App", "X-Goog-Api-Client",
	"Originator", "Session_id", "Session-Id", "Conversation_id", "X-Client-Request-Id",
}

// serverBetas begin the names of Anthropic's betas with which the provider fetches,
// runs or keeps something for the agent.
var serverBetas = []string{"code-execution", "files-api", "mcp-client", "skills", "web-fetch", "web-search", "fast-mode"}

// header returns the headers for the provider.
func (q *request) header(agent http.Header) http.Header {
	h := http.Header{}
	for name, values := range agent {
		if slices.Contains(passedHeaders, name) || strings.HasPrefix(name, "X-Stainless-") {
			h[name] = slices.Clone(values)
		}
	}
	if betas := h.Values("Anthropic-Beta"); len(betas) > 0 {
		kept := slices.DeleteFunc(strings.Split(strings.Join(betas, ","), ","), func(beta string) bool {
			return slices.ContainsFunc(serverBetas, func(p string) bool { return strings.HasPrefix(strings.TrimSpace(beta), p) })
		})
		h.Del("Anthropic-Beta")
		if len(kept) > 0 {
			h.Set("Anthropic-Beta", strings.Join(kept, ","))
		}
	}
	h.Set("Content-Type", "application/json")
	for name, values := range q.profile.Header {
		h[http.CanonicalHeaderKey(name)] = slices.Clone(values)
	}
	h.Set("Accept-Encoding", "identity") // the answer is read
	return h
}
