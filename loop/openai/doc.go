// Package openai is a [loop.Model] for endpoints that speak OpenAI's Chat
// Completions: OpenAI itself, Ollama's /v1, vLLM, llama.cpp, OpenRouter, Groq,
// Mistral, Gemini's compatible layer.
//
// Requests, retries and server-sent events are openai-go's. Answers are decoded
// here, because endpoints differ from the standard where the library is strict:
// arguments as objects, calls without index or id, errors in the middle of a
// stream under status 200, missing usage, missing finish reasons.
//
//	Complete ──▶ request (openai-go) ──▶ attempt (status, caps, silence) ──▶ endpoint
//	                                                                           │
//	loop.Response ◀── assembly ◀── wire (tolerant) ◀── one JSON, or events ◀───┘
package openai
