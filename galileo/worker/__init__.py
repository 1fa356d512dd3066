"""Workers: processes that push notifications of channels to webhooks, MQTT, Kafka and tables."""
