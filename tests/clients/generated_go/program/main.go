// Calls ten operations of the server with the client that openapi-generator made, in the package `culvert`.
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"

	"culvert"
)

func check(step string, answer *http.Response, err error) {
	if err != nil {
		more := ""
		if told, ok := err.(*culvert.GenericOpenAPIError); ok {
			more = string(told.Body())
		}
		fmt.Fprintln(os.Stderr, step, err, more)
		os.Exit(1)
	}
}

func expect(step string, is bool) {
	if !is {
		fmt.Fprintln(os.Stderr, step, "is not what was expected")
		os.Exit(1)
	}
}

func main() {
	configuration := culvert.NewConfiguration()
	configuration.Servers = culvert.ServerConfigurations{{URL: os.Getenv("CULVERT_API_URL")}}
	api := culvert.NewAPIClient(configuration)
	context := context.WithValue(context.Background(), culvert.ContextAccessToken, os.Getenv("CULVERT_API_KEY"))

	me, answer, err := api.RootAPI.Self(context).Execute()
	check("self", answer, err)
	expect("role", me.Role == "admin")

	wanted := culvert.IpPolicyCreate{}
	wanted.SetDescription("generated")
	policy, answer, err := api.IpPoliciesAPI.IpPoliciesCreate(context).IpPolicyCreate(wanted).Execute()
	check("create", answer, err)
	expect("description", policy.Description == "generated")
	rule, answer, err := api.IpPolicyRulesAPI.IpPolicyRulesCreate(context).IpPolicyRuleCreate(
		*culvert.NewIpPolicyRuleCreate("allow", "192.0.2.0/24", policy.Id)).Execute()
	check("create a rule", answer, err)
	expect("policy", rule.IpPolicy.Id == policy.Id)
	change := culvert.IpPolicyUpdate{}
	change.SetDescription("changed")
	changed, answer, err := api.IpPoliciesAPI.IpPoliciesUpdate(context, policy.Id).IpPolicyUpdate(change).Execute()
	check("update", answer, err)
	expect("change", changed.Description == "changed")
	_, answer, err = api.IpPoliciesAPI.IpPoliciesGet(context, policy.Id).Execute()
	check("get", answer, err)
	page, answer, err := api.IpPoliciesAPI.IpPoliciesList(context).Limit(1).Filter(`obj.description == "changed"`).Execute()
	check("list", answer, err)
	expect("page", len(page.IpPolicies) == 1 && page.IpPolicies[0].Id == policy.Id && page.NextPageUri.Get() == nil)

	endpoint := culvert.EndpointCreate{}
	endpoint.SetUrl("https://go.culvert.localhost")
	endpoint.SetUpstreamUrl("http://127.0.0.1:9")
	made, answer, err := api.EndpointsAPI.EndpointsCreate(context).EndpointCreate(endpoint).Execute()
	check("create an endpoint", answer, err)
	expect("port", made.Port == 443 && !made.CreatedAt.IsZero())

	key, answer, err := api.ApiKeysAPI.ApiKeysCreate(context).ApiKeyCreate(culvert.ApiKeyCreate{}).Execute()
	check("create a key", answer, err)
	expect("token", key.GetToken() != "")
	tried, answer, err := api.ApiKeysAPI.ApiKeysDryRun(context).ApiKeyCreate(culvert.ApiKeyCreate{}).Execute()
	check("try a key", answer, err)
	expect("role of a key", tried.Role == "admin")

	condition := *culvert.NewAlertConditionCreate("key_expiring")
	condition.SetWithin("7d")
	alert, answer, err := api.AlertRulesAPI.AlertRulesCreate(context).AlertRuleCreate(
		*culvert.NewAlertRuleCreate(condition, "generated")).Execute()
	check("create an alert rule", answer, err)
	expect("condition", alert.Condition.Type == "key_expiring" && alert.Condition.GetWithin() == "7d")

	events, answer, err := api.EventsAPI.EventsList(context).Order("oldest").Type_([]string{"ip_policy_created.v0"}).Execute()
	check("list events", answer, err)
	expect("events", len(events.Events) > 0)

	answer, err = api.EndpointsAPI.EndpointsDelete(context, made.Id).Execute()
	check("delete", answer, err)
	_, answer, err = api.EndpointsAPI.EndpointsGet(context, made.Id).Execute()
	expect("the deleted endpoint", err != nil && answer.StatusCode == 404)
	fmt.Println("openapi-generator: 13 operations")
}
