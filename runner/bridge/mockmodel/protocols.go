package mockmodel

import "net/http"

// writeMessage answers in Anthropic's Messages protocol.
func (a *answer) writeMessage() {
	usage := func() object {
		u, ok := a.usage()
		if !ok {
			return object{}
		}
		return object{
			"input_tokens": u.InputTokens, "cache_read_input_tokens": u.CachedInputTokens,
			"cache_creation_input_tokens": u.CacheWriteTokens, "output_tokens": u.OutputTokens,
		}
	}
	reason := "end_turn"
	switch {
	case a.step.Truncated:
		reason = "max_tokens"
	case len(a.step.Calls) > 0:
		reason = "tool_use"
	}
	message := object{
		"id": callID("msg", 0, a.size), "type": "message", "role": "assistant", "model": a.asked.Model,
		"content": []object{}, "stop_reason": nil, "stop_sequence": nil,
	}
	if !a.asked.Stream {
		content := []object{}
		if a.step.Text != "" {
			content = append(content, object{"type": "text", "text": a.step.Text})
		}
		for i, c := range a.step.Calls {
			content = append(content, object{"type": "tool_use", "id": callID("toolu", i, a.size), "name": c.Name, "input": c.arguments()})
		}
		a.countWhole()
		message["content"], message["stop_reason"], message["usage"] = content, reason, usage()
		a.writeJSON(message)
		return
	}
	begin := usage()
	if len(begin) > 0 {
		begin["output_tokens"] = 1
	}
	message["usage"] = begin
	send := func(kind string, o object) {
		o["type"] = kind
		a.send(kind, o)
	}
	send("message_start", object{"message": message})
	index := 0
	block := func(start object, text string, endless bool, delta func(string) object) {
		send("content_block_start", object{"index": index, "content_block": start})
		a.forPieces(text, endless, func(p string) { send("content_block_delta", object{"index": index, "delta": delta(p)}) })
		send("content_block_stop", object{"index": index})
		index++
	}
	if a.step.Text != "" {
		block(object{"type": "text", "text": ""}, a.step.Text, a.step.Endless, func(p string) object { return object{"type": "text_delta", "text": p} })
	}
	for i, c := range a.step.Calls {
		start := object{"type": "tool_use", "id": callID("toolu", i, a.size), "name": c.Name, "input": object{}}
		block(start, string(c.arguments()), false, func(p string) object { return object{"type": "input_json_delta", "partial_json": p} })
	}
	a.stop()
	send("message_delta", object{"delta": object{"stop_reason": reason, "stop_sequence": nil}, "usage": usage()})
	send("message_stop", object{})
}

func (a *answer) responsesUsage() any {
	u, ok := a.usage()
	if !ok {
		return nil
	}
	input := u.InputTokens + u.CachedInputTokens + u.CacheWriteTokens
	return object{
		"input_tokens": input, "input_tokens_details": object{"cached_tokens": u.CachedInputTokens},
		"output_tokens": u.OutputTokens, "output_tokens_details": object{"reasoning_tokens": 0}, "total_tokens": input + u.OutputTokens,
	}
}

// writeResponse answers in OpenAI's Responses protocol.
func (a *answer) writeResponse() {
	response := object{
		"id": callID("resp", 0, a.size), "object": "response", "created_at": created, "model": a.asked.Model, "status": "in_progress",
		"error": nil, "incomplete_details": nil, "instructions": nil, "output": []object{}, "parallel_tool_calls": true, "tool_choice": "auto", "tools": []object{}, "usage": nil,
	}
	send := func(kind string, o object) {
		o["type"], o["sequence_number"] = kind, a.sequence
		a.sequence++
		if a.asked.Stream {
			a.send(kind, o)
		}
	}
	send("response.created", object{"response": response})
	send("response.in_progress", object{"response": response})
	var output []object
	if a.step.Text != "" {
		output = append(output, a.sendResponseText(send))
	}
	for i, c := range a.step.Calls {
		at := len(output)
		id := callID("fc", i, a.size)
		item := object{"type": "function_call", "id": id, "call_id": callID("call", i, a.size), "name": c.Name, "arguments": "", "status": "in_progress"}
		send("response.output_item.added", object{"output_index": at, "item": item})
		arguments := string(c.arguments())
		a.forPieces(arguments, false, func(p string) {
			send("response.function_call_arguments.delta", object{"item_id": id, "output_index": at, "delta": p})
		})
		send("response.function_call_arguments.done", object{"item_id": id, "output_index": at, "name": c.Name, "arguments": arguments})
		item["arguments"], item["status"] = arguments, "completed"
		send("response.output_item.done", object{"output_index": at, "item": item})
		output = append(output, item)
	}
	if a.asked.Stream {
		a.stop()
	}
	response["output"], response["usage"], response["status"] = output, a.responsesUsage(), "completed"
	if a.step.Truncated {
		response["status"], response["incomplete_details"] = "incomplete", object{"reason": "max_output_tokens"}
	}
	if a.asked.Stream {
		kind := "response.completed"
		if a.step.Truncated {
			kind = "response.incomplete"
		}
		send(kind, object{"response": response})
		return
	}
	a.writeJSON(response)
}

// sendResponseText sends the events of a message with the step's text, and returns
// the message.
func (a *answer) sendResponseText(send func(string, object)) object {
	id := callID("msg", 0, a.size)
	message := object{"type": "message", "id": id, "role": "assistant", "status": "in_progress", "content": []object{}}
	part := func(text string) object {
		return object{"type": "output_text", "text": text, "annotations": []object{}, "logprobs": []object{}}
	}
	send("response.output_item.added", object{"output_index": 0, "item": message})
	send("response.content_part.added", object{"item_id": id, "output_index": 0, "content_index": 0, "part": part("")})
	a.forPieces(a.step.Text, a.step.Endless && a.asked.Stream, func(p string) {
		send("response.output_text.delta", object{"item_id": id, "output_index": 0, "content_index": 0, "delta": p, "logprobs": []object{}})
	})
	send("response.output_text.done", object{"item_id": id, "output_index": 0, "content_index": 0, "text": a.step.Text, "logprobs": []object{}})
	send("response.content_part.done", object{"item_id": id, "output_index": 0, "content_index": 0, "part": part(a.step.Text)})
	message["content"], message["status"] = []object{part(a.step.Text)}, "completed"
	send("response.output_item.done", object{"output_index": 0, "item": message})
	return message
}

// writeChat answers in OpenAI's Chat Completions protocol.
func (a *answer) writeChat() {
	usage := func() any {
		u, ok := a.usage()
		if !ok {
			return nil
		}
		prompt := u.InputTokens + u.CachedInputTokens + u.CacheWriteTokens
		return object{
			"prompt_tokens": prompt, "completion_tokens": u.OutputTokens, "total_tokens": prompt + u.OutputTokens,
			"prompt_tokens_details": object{"cached_tokens": u.CachedInputTokens}, "completion_tokens_details": object{"reasoning_tokens": 0},
		}
	}
	reason := "stop"
	switch {
	case a.step.Truncated:
		reason = "length"
	case len(a.step.Calls) > 0:
		reason = "tool_calls"
	}
	completion := object{"id": callID("chatcmpl", 0, a.size), "object": "chat.completion", "created": created, "model": a.asked.Model}
	if !a.asked.Stream {
		message := object{"role": "assistant", "content": a.step.Text, "refusal": nil}
		var calls []object
		for i, c := range a.step.Calls {
			calls = append(calls, object{"id": callID("call", i, a.size), "type": "function", "function": object{"name": c.Name, "arguments": string(c.arguments())}})
		}
		if calls != nil {
			message["tool_calls"] = calls
		}
		a.countWhole()
		completion["choices"] = []object{{"index": 0, "message": message, "logprobs": nil, "finish_reason": reason}}
		if u := usage(); u != nil {
			completion["usage"] = u
		}
		a.writeJSON(completion)
		return
	}
	completion["object"] = "chat.completion.chunk"
	send := func(delta object, reason any) {
		completion["choices"] = []object{{"index": 0, "delta": delta, "logprobs": nil, "finish_reason": reason}}
		a.send("", completion)
	}
	send(object{"role": "assistant", "content": ""}, nil)
	a.forPieces(a.step.Text, a.step.Endless, func(p string) { send(object{"content": p}, nil) })
	for i, c := range a.step.Calls {
		start := object{"index": i, "id": callID("call", i, a.size), "type": "function", "function": object{"name": c.Name, "arguments": ""}}
		send(object{"tool_calls": []object{start}}, nil)
		a.forPieces(string(c.arguments()), false, func(p string) {
			send(object{"tool_calls": []object{{"index": i, "function": object{"arguments": p}}}}, nil)
		})
	}
	a.stop()
	send(object{}, reason)
	if u := usage(); u != nil && a.asked.StreamOptions.IncludeUsage {
		completion["choices"], completion["usage"] = []object{}, u
		a.send("", completion)
	}
	a.sendRaw("", "data: [DONE]\n\n")
}

// writeGemini answers in Gemini's protocol. Without alt=sse, a stream is a JSON array
// that arrives in pieces.
func (a *answer) writeGemini() {
	var parts []object // of a whole answer
	events := a.r.URL.Query().Get("alt") == "sse"
	first := true
	finish := "STOP"
	if a.step.Truncated {
		finish = "MAX_TOKENS"
	}
	build := func(parts []object, last bool) object {
		candidate := object{"index": 0, "content": object{"role": "model", "parts": parts}}
		chunk := object{"candidates": []object{candidate}, "modelVersion": a.asked.Model, "responseId": callID("gen", 0, a.size)}
		if last {
			candidate["finishReason"] = finish
		}
		if u, ok := a.usage(); ok && last {
			prompt := u.InputTokens + u.CachedInputTokens
			chunk["usageMetadata"] = object{
				"promptTokenCount": prompt, "cachedContentTokenCount": u.CachedInputTokens,
				"candidatesTokenCount": u.OutputTokens, "totalTokenCount": prompt + u.OutputTokens,
			}
		}
		return chunk
	}
	send := func(list []object, last bool) {
		switch {
		case !a.asked.Stream:
			parts = append(parts, list...)
		case events:
			a.send("", build(list, last))
		default:
			a.sendArrayElement(build(list, last), first)
			first = false
		}
	}
	if a.asked.Stream {
		a.forPieces(a.step.Text, a.step.Endless, func(p string) { send([]object{{"text": p}}, false) })
	} else if a.step.Text != "" {
		send([]object{{"text": a.step.Text}}, false)
	}
	for _, c := range a.step.Calls {
		send([]object{{"functionCall": object{"name": c.Name, "args": c.arguments()}}}, false)
	}
	if !a.asked.Stream {
		a.countWhole()
		a.writeJSON(build(parts, true))
		return
	}
	a.stop()
	send([]object{{"text": ""}}, true)
	if !events {
		a.sendRaw("", "]")
	}
}

// sendArrayElement sends an element of an array.
func (a *answer) sendArrayElement(v object, first bool) {
	separator := ",\n"
	if first {
		separator = "["
	}
	a.sendRaw("application/json", separator+string(mustJSON(v)))
}

var _ http.Handler = (*Model)(nil)
