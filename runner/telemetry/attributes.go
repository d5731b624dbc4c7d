package telemetry

import (
	"net/url"
	"strconv"

	"go.opentelemetry.io/otel/attribute"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
)

// schemaURL is the version of the conventions that the names are from, the last
// one in the repository of all conventions. Generative AI has since moved to
// open-telemetry/semantic-conventions-genai, which has no release.
const schemaURL = "https://opentelemetry.io/schemas/1.41.0"

// Attributes of the conventions.
const (
	keyAgent         attribute.Key = "gen_ai.agent.name"
	keyAgentVersion  attribute.Key = "gen_ai.agent.version"
	keyArguments     attribute.Key = "gen_ai.tool.call.arguments"
	keyCacheRead     attribute.Key = "gen_ai.usage.cache_read.input_tokens"
	keyCacheWrite    attribute.Key = "gen_ai.usage.cache_creation.input_tokens"
	keyCall          attribute.Key = "gen_ai.tool.call.id"
	keyConversation  attribute.Key = "gen_ai.conversation.id"
	keyError         attribute.Key = "error.type"
	keyFinish        attribute.Key = "gen_ai.response.finish_reasons"
	keyFirstChunk    attribute.Key = "gen_ai.response.time_to_first_chunk"
	keyInput         attribute.Key = "gen_ai.usage.input_tokens"
	keyMessagesIn    attribute.Key = "gen_ai.input.messages"
	keyMessagesOut   attribute.Key = "gen_ai.output.messages"
	keyOperation     attribute.Key = "gen_ai.operation.name"
	keyOutput        attribute.Key = "gen_ai.usage.output_tokens"
	keyProvider      attribute.Key = "gen_ai.provider.name"
	keyRequestModel  attribute.Key = "gen_ai.request.model"
	keyResponseModel attribute.Key = "gen_ai.response.model"
	keyResult        attribute.Key = "gen_ai.tool.call.result"
	keyServer        attribute.Key = "server.address"
	keyServerPort    attribute.Key = "server.port"
	keyStream        attribute.Key = "gen_ai.request.stream"
	keyTokenType     attribute.Key = "gen_ai.token.type"
	keyTool          attribute.Key = "gen_ai.tool.name"
	keyToolType      attribute.Key = "gen_ai.tool.type"
)

// unknownTool stands for tools that the session doesn't offer: the model made
// them up.
const (
	agentName   = "caisson"
	unknownTool = "_OTHER"
)

// providerName returns the conventions' word for a provider. A replay has none.
func providerName(provider string) string {
	if provider == "" {
		return unknownTool
	}
	return provider
}

// modelAttributes returns a request's attributes, for spans and metrics.
func modelAttributes(m loop.ModelInfo) []attribute.KeyValue {
	out := []attribute.KeyValue{keyOperation.String("chat"), keyProvider.String(providerName(m.Provider)), keyRequestModel.String(m.Model)}
	u, err := url.Parse(m.BaseURL)
	if err != nil || u.Hostname() == "" {
		return out
	}
	port, err := strconv.Atoi(u.Port())
	switch {
	case err == nil:
	case u.Scheme == "http":
		port = 80
	default:
		port = 443
	}
	return append(out, keyServer.String(u.Hostname()), keyServerPort.Int(port))
}

// usageAttributes returns the tokens and the cost of a model call or turn.
func usageAttributes(u limits.Usage) []attribute.KeyValue {
	out := []attribute.KeyValue{keyInput.Int64(inputTokens(u)), keyOutput.Int64(u.OutputTokens)}
	if u.CachedInputTokens > 0 {
		out = append(out, keyCacheRead.Int64(u.CachedInputTokens))
	}
	if u.CacheWriteTokens > 0 {
		out = append(out, keyCacheWrite.Int64(u.CacheWriteTokens))
	}
	if u.CostMicroUSD != nil {
		out = append(out, attribute.Float64("caisson.usage.cost_usd", float64(*u.CostMicroUSD)/1e6))
	}
	return out
}

// inputTokens counts all input, including what was read from or written to a
// cache, as the conventions do.
func inputTokens(u limits.Usage) int64 {
	return u.InputTokens + u.CachedInputTokens + u.CacheWriteTokens
}
